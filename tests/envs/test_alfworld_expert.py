"""The exploring expert solves what it is given, sees only text, and thinks in few words."""

from __future__ import annotations

import random
import re
from statistics import mean

import pytest

from ratchet.envs.alfworld import TASK_TYPES, AlfworldEnv, AlfworldExpert, Oracle, game_task, generate_games
from ratchet.envs.alfworld.expert import parse_goal, plausible_places
from ratchet.envs.base import Task, Turn
from ratchet.errors import RatchetError


def episode(
    env: AlfworldEnv, task: Task, expert: AlfworldExpert, disturb: random.Random | None = None
) -> tuple[bool, list[tuple[str, str]]]:
    """(solved within 50 steps, the expert's replies); `disturb` acts in its stead at every third step at first."""
    turn = env.reset(task)
    expert.reset(task, turn)
    replies: list[tuple[str, str]] = []
    for step in range(50):
        reply = expert.act(turn)
        assert reply[1] in turn.admissible, (task.task_id, reply)
        replies.append(reply)
        turn = env.step(disturb.choice(turn.admissible) if disturb and step < 15 and step % 3 == 0 else reply[1])
        if turn.done:
            return turn.solved, replies
    return False, replies


@pytest.mark.parametrize(
    ("room", "split", "share"), [(6, "train", 0.99), (6, "test", 0.99), (14, "train", 0.98), (14, "test", 0.98), (None, "test", 0.95)]
)
def test_the_expert_solves_games_of_every_type(room: int | None, split: str, share: float):
    games = generate_games(split, 240, 31, room)
    env = AlfworldEnv({game.task_id: game for game in games})
    solved = {kind: [] for kind in TASK_TYPES}
    for game in games:
        solved[game.task_type].append(episode(env, game_task(game, split), AlfworldExpert())[0])
    assert min(map(mean, solved.values())) >= share


@pytest.mark.parametrize("split", ["train", "seen", "select", "confirm", "test"])
def test_every_generated_game_can_be_solved(split: str):
    games = generate_games(split, 240, 32, 6) + generate_games(split, 60, 32, None)
    env = AlfworldEnv({game.task_id: game for game in games})
    for game in games:
        solved, replies = episode(env, game_task(game, split), Oracle(game))
        assert solved and len(replies) <= 14, game.task_id


def test_thoughts_are_short_and_name_what_the_action_needs():
    games = generate_games("train", 240, 33, 6)
    env = AlfworldEnv({game.task_id: game for game in games})
    replies = [reply for game in games for reply in episode(env, game_task(game, "train"), AlfworldExpert())[1]]
    lengths = [len(re.sub(r" (?=\d)", "_", thought).split()) for thought, _ in replies]  # `mug 2` is one word
    assert min(lengths) >= 5 and max(lengths) <= 14 and mean(lengths) < 12
    assert len(replies) / len(games) < 9
    for thought, action in replies:
        assert "\n" not in thought and ">" not in thought
        verb = action.split()[0]
        if verb == "go":
            assert thought.endswith(action.removeprefix("go to "))
        elif verb in ("open", "take", "use", "clean", "heat", "cool"):
            assert thought.endswith(f"; {verb}")


def test_the_expert_is_the_same_every_time():
    games = generate_games("train", 30, 34, 6)
    env = AlfworldEnv({game.task_id: game for game in games})
    runs = [[episode(env, game_task(game, "train"), AlfworldExpert()) for game in games] for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_expert_goes_on_from_what_others_did():
    games = generate_games("train", 240, 35, 6)
    env = AlfworldEnv({game.task_id: game for game in games})
    solved = [episode(env, game_task(game, "train"), AlfworldExpert(), random.Random(game.task_id))[0] for game in games]
    assert mean(solved) > 0.97


def test_searching_starts_where_the_constants_say_it_may_be():
    game = next(g for g in generate_games("train", 200, 36, 14) if g.task_type == "pick_and_place_simple")
    env = AlfworldEnv({game.task_id: game})
    _, replies = episode(env, game_task(game, "train"), AlfworldExpert())
    first = replies[0][1].removeprefix("go to ").split()[0]
    assert first in plausible_places()[game.target.lower()]


def test_an_unknown_sentence_is_refused():
    intro = "-= Welcome to TextWorld, ALFRED! =-\n\nYou see nothing.\n\nYour task is to: tidy up."
    with pytest.raises(RatchetError, match="tidy up"):
        parse_goal(intro)
    with pytest.raises(RatchetError, match="does not understand"):
        AlfworldExpert().reset(Task("alfworld", "0.4.2", "x", "train", "", ""), Turn("hello", ()))
