"""Both sides of the comparison play the same episodes: the same turns, the same tokens, none shorter than it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import ours
from benchmarks.peers.make import TINY, make_world, tokenizer_of
from benchmarks.peers.spec import Iteration, Learning
from benchmarks.peers.tool import RESPONSE_TEMPLATE, Tool, action_of
from benchmarks.peers.world import MARKS, EndlessWorld, next_tasks, tasks_of
from ratchet.envs.base import Task, Turn
from ratchet.episodes.template import load_template


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("world")
    make_world(made, tasks=4, shape=TINY, context=1024, texts=20)
    return made


def test_the_world_goes_fifteen_turns_of_equally_many_tokens_whatever_is_written(folder: Path) -> None:
    world, task = EndlessWorld(str(folder), 50), tasks_of(folder)[0]
    template = load_template(folder / "tokenizer")
    turn, texts = world.reset(task), []
    for number in range(15):
        assert len(template.observation_ids(turn.observation, number == 0)) == 50
        texts.append(turn.observation)
        turn = world.step(f"{number} blah <end>")
        assert not turn.done and not turn.solved and turn.valid
    assert len(set(texts)) > 5  # real commands were played


@pytest.mark.parametrize("tokens", [5, 12, 200])
def test_any_number_of_tokens_a_turn_is_met_exactly(folder: Path, tokens: int) -> None:
    world = EndlessWorld(str(folder), tokens)
    for task in tasks_of(folder):
        assert world.sizer.count(world.reset(task).observation) == tokens - MARKS["first"]
        for number in range(10):
            assert world.sizer.count(world.step(str(number)).observation) == tokens - MARKS["later"]


def test_two_samples_of_a_task_never_get_the_same_reward(folder: Path) -> None:
    world, task = EndlessWorld(str(folder), 50), tasks_of(folder)[0]
    scores = set()
    for sample in range(20):
        world.reset(task)
        scores.add([world.step(f"{sample}/{number}").score for number in range(3)][-1])
    assert len(scores) == 20 and all(0 <= score <= 1 for score in scores)


def test_our_iteration_takes_every_turn_of_every_episode_and_reads_what_it_should(folder: Path) -> None:
    result = ours.measure(Iteration(str(folder), turns=15, tasks=2, samples=2, read=20, write=4))
    (one,) = result["iterations"]
    assert one["turns"] == 15 * 4 and one["tokens_read"] == 20 * 15 * 4
    assert 0.8 * 240 < one["tokens_written"] <= 240
    assert result["peak_mb"] > result["peak_mb_without_players"] > 50
    assert [len(each) for each in ours.turns(Iteration(str(folder), turns=5, tasks=2, samples=2, read=20, write=4))["turn_s"]] == [4]


def test_a_reply_of_any_text_becomes_one_call_with_all_of_it(folder: Path) -> None:
    tokenizer = tokenizer_of(folder / "tokenizer")
    for text in ("go to desk 1<end>", "<end>", "blah", "two\nlines > x<act><end>"):
        prompt = "<begin><observe>You see a desk 1.<act>"
        message = tokenizer.parse_response(text, RESPONSE_TEMPLATE, prefix=prompt)
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": text}}}
        assert message == {"role": "assistant", "tool_calls": [call]}


def test_the_chat_template_gives_the_ids_that_our_template_gives(folder: Path) -> None:
    tokenizer, template = tokenizer_of(folder / "tokenizer"), load_template(folder / "tokenizer")
    first, later = "You see a desk 1, and a drawer 2.", "Nothing happens."
    messages = [{"role": "user", "content": first}, {"role": "assistant", "content": "> look"}, {"role": "tool", "name": "act", "content": later}]
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert ids == template.observation_ids(first, True) + template.replies_ids(["> look"])[0] + template.observation_ids(later, False)


class Short:
    """A world that is solved at its third step; `bad` actions are not admissible."""

    name, version = "short", "1"

    def reset(self, task: Task) -> Turn:
        self.steps = 0
        return Turn("begin", ())

    def step(self, action: str) -> Turn:
        self.steps += 1
        return Turn(f"{self.steps}: {action}", (), solved=self.steps == 3, done=self.steps == 3, score=float(self.steps == 3), valid=action != "bad")

    def close(self) -> None: ...


@pytest.mark.parametrize(("turns", "action", "ended_at", "reward"), [(10, "a", 3, 1.0), (2, "a", 2, 0.0), (10, "bad", 2, 0.0)])
def test_a_tool_says_too_much_where_the_episode_ends(turns: int, action: str, ended_at: int, reward: float) -> None:
    task = Task("short", "1", "x", "train", "", "")
    tool = Tool(Short(), {"x": task}, turns, "too long", str, max_invalid=2)
    for _ in range(2):  # the second episode begins anew
        assert tool.reset(task="x", prompt=[]) == "begin"
        answers = [tool.act(action) for _ in range(ended_at)]
        assert answers[-1] == "too long" and "too long" not in answers[:-1]
        assert tool.get_reward() == reward


def test_a_cut_reply_holds_no_action_for_the_peer_either() -> None:
    assert action_of("I look.\n> look<end>") == "look"
    assert action_of("I look.\n> look") == action_of("look<end>") == ""


def test_iterations_go_through_the_tasks_in_their_order(folder: Path) -> None:
    tasks = tasks_of(folder)
    assert next_tasks(tasks, 3, 1) == [tasks[3], tasks[0], tasks[1]]


def test_the_update_is_counted_where_it_computes(folder: Path) -> None:
    from benchmarks.peers.figures import padding_share
    from benchmarks.peers.learner import measure

    found = measure(Learning(str(folder), 12, (30, 200), batch_tokens=512))
    assert found["real"] > 1000 and padding_share(found["computed"], found["real"]) < 0.5
    assert 0 <= found["mb_on_top"] < 500  # 0 where this process has once held more; the benchmark gives it one of its own


@pytest.mark.slow
def test_the_peer_takes_the_same_turns_and_tokens_as_we_do(folder: Path) -> None:
    from benchmarks.peers import trl_side

    spec = Iteration(str(folder), turns=4, tasks=2, samples=2, read=20, write=4, batch=2)
    (theirs,), (mine,) = trl_side.measure(spec)["iterations"], ours.measure(spec)["iterations"]
    assert theirs["turns"] == mine["turns"] == 16 and theirs["tokens_read"] == mine["tokens_read"] == 320
    assert abs(theirs["tokens_written"] - mine["tokens_written"]) <= 8
