"""Episodes as they are played: who ends them, what is written down, and that nothing depends on workers or order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.engines.base import Generated
from ratchet.engines.local import LocalEngine
from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import EnvPool
from ratchet.episodes.files import write_table
from ratchet.learners.batches import sequences_of
from ratchet.policies.language_model import LanguageModelPolicy
from ratchet.policies.scripted import ScriptedPolicy
from ratchet.rollout.play import Job, episode_id, play
from tests.envs.toy import task
from tests.models import tiny


class Scripted:
    """Says what it is told, the last thing for ever."""

    def __init__(self, actions: list[str]) -> None:
        self.actions, self.t = actions, 0

    def reset(self, task: Task, turn: Turn) -> None:
        self.actions = self.actions or {"toy-0": ["up"], "toy-1": ["wait"], "toy-2": ["up", "exit"], "toy-3": ["up", "x", "up"]}[task.task_id]

    def act(self, turn: Turn) -> tuple[str, str]:
        self.t += 1
        return "", self.actions[min(self.t, len(self.actions)) - 1]


def scripted(*actions: str) -> ScriptedPolicy:
    return ScriptedPolicy(lambda seed, name: Scripted(list(actions)), policy_id="scripted", version="v1", template=tiny.template())


def language_model(rows: int = 8, max_tokens: int = 120, max_reply_tokens: int = 10, temperature: float = 1.0, model: Any = None) -> LanguageModelPolicy:
    template = tiny.template()
    engine = LocalEngine(model or tiny.model(len(template.tokenizer)), slots=rows, length=max_tokens, end=template.end, pad=template.pad)
    return LanguageModelPolicy(engine, template, policy_id="tiny", version="v1", temperature=temperature, max_tokens=max_tokens,
                               max_reply_tokens=max_reply_tokens)


def run(policy: Any, jobs: list[Job], workers: int = 1, rows: int = 8, max_steps: int = 6, environment: str = "make", goal: int = 5,
        max_invalid: int | None = None) -> tuple[pa.Table, pa.Table]:
    with EnvPool(f"tests.envs.toy:{environment}", {"goal": goal} if environment == "make" else {}, workers, 5.0) as pool:
        return play(jobs, policy, pool, max_steps=max_steps, rows=rows, max_invalid=max_invalid)


def jobs(count: int, samples: int = 1, seed: int = 1) -> list[Job]:
    return [Job(task(number), seed, sample) for number in range(count) for sample in range(samples)]


def by_task(episodes: pa.Table) -> dict[str, dict[str, Any]]:
    return {row["task_id"]: row for row in episodes.to_pylist()}


def steps_of(steps: pa.Table, name: str) -> list[dict[str, Any]]:
    return [row for row in steps.to_pylist() if row["episode_id"] == name]


def test_the_environment_the_step_budget_or_an_error_ends_an_episode() -> None:
    episodes, steps = run(scripted(), jobs(4))
    found = by_task(episodes)
    said = {name: (row["terminated"], row["truncated"], row["error"] is not None, row["solved"], row["score"], row["n_steps"]) for name, row in found.items()}
    assert said == {"toy-0": (True, False, False, True, 1.0, 5), "toy-1": (False, True, False, False, 0.0, 6),
                    "toy-2": (False, False, True, False, 0.0, 2), "toy-3": (True, False, False, True, 1.0, 6)}
    assert "exit code 3" in found["toy-2"]["error"] and found["toy-2"]["error"].startswith("crash")
    for row in found.values():
        mine = steps_of(steps, row["episode_id"])
        assert [one["t"] for one in mine] == list(range(row["n_steps"]))
        assert row["n_tokens"] == sum(len(one["reply_ids"]) for one in mine)


def test_the_last_allowed_step_may_still_solve_the_task() -> None:
    episodes, _ = run(scripted("up"), jobs(1), max_steps=5)
    [row] = episodes.to_pylist()
    assert (row["solved"], row["terminated"], row["truncated"], row["n_steps"]) == (True, True, False, 5)


def test_so_many_inadmissible_actions_in_a_row_truncate_an_episode_and_a_good_one_between_begins_anew() -> None:
    actions = ["dance", "sing", "up", "dance", "sing", "dance", "up"]
    for limit, steps, truncated in ((3, 6, True), (2, 2, True), (None, 7, False), (4, 7, False)):
        [row] = run(scripted(*actions), jobs(1), max_steps=9, goal=2, max_invalid=limit)[0].to_pylist()
        assert (row["n_steps"], row["truncated"], row["solved"]) == (steps, truncated, not truncated), limit


def test_a_task_that_cannot_be_reset_is_an_error_episode_and_the_others_go_on() -> None:
    broken = Task("toy", "1", "unknown", "train", "count", "room")
    episodes, steps = run(scripted("up"), [Job(broken, 1), *jobs(3), Job(broken, 2)], rows=2)
    errors = [row for row in episodes.to_pylist() if row["error"]]
    assert len(errors) == 2 and all(row["n_steps"] == 0 and not row["terminated"] and not row["truncated"] for row in errors)
    assert sum(row["solved"] for row in episodes.to_pylist()) == 3 and steps.num_rows == 15


def test_a_step_holds_what_was_seen_before_it_and_what_came_of_it() -> None:
    episodes, steps = run(scripted("up", "up", "dance", "wait"), jobs(1), max_steps=4)
    mine = steps_of(steps, episodes["episode_id"][0].as_py())
    assert [one["observation"] for one in mine] == ["toy-0: ", "toy-0: up", "toy-0: up up", "toy-0: up up dance"]
    assert [one["valid"] for one in mine] == [True, True, False, True] and [one["action"] for one in mine] == ["up", "up", "dance", "wait"]
    assert all(one["action"] in one["reply"] and one["action_type"] == one["action"] for one in mine)
    # the history of a step ends with its observation
    template = tiny.template()
    [one] = sequences_of(steps)
    for t, row in enumerate(mine):
        before = [token for earlier in mine[:t] for token in earlier["prompt_ids"] + earlier["reply_ids"]]
        history = before + row["prompt_ids"]
        assert row["prompt_ids"] == template.observation_ids(row["observation"], t == 0)
        assert one.ids[: len(history)].tolist() == history


class _Rewarding:
    """Gives a reward in the middle, and a graded score without solving."""

    name, version = "rewarding", "1"

    def __init__(self) -> None:
        self.t = 0

    def reset(self, task: Task) -> Turn:
        self.t = 0
        return Turn("same", ())

    def step(self, action: str) -> Turn:
        self.t += 1
        return Turn("same", (), reward=[0.25, 0.0, -1.0, 0.5][self.t - 1], score=[0.25, 0.25, 0.5, 0.75][self.t - 1], done=self.t == 4)

    def close(self) -> None: ...


def rewarding() -> _Rewarding:
    return _Rewarding()


def test_rewards_and_scores_at_any_step_survive() -> None:
    with EnvPool("tests.rollout.test_play:rewarding", {}, 1, 5.0) as pool:
        episodes, steps = play(jobs(1), scripted("x"), pool, max_steps=9, rows=1)
    assert steps["reward"].to_pylist() == [0.25, 0.0, -1.0, 0.5] and steps["score"].to_pylist() == [0.25, 0.25, 0.5, 0.75]
    assert steps["repeated"].to_pylist() == [True] * 4
    [row] = episodes.to_pylist()
    assert row["score"] == 0.75 and row["solved"] is False and row["terminated"]


def test_every_episode_has_an_id_of_its_own() -> None:
    one = Job(task(0), 1, 0, 0, 0)
    others = [Job(task(1), 1), Job(task(0), 2), Job(task(0), 1, 1), Job(task(0), 1, 0, 1), Job(task(0), 1, 0, 0, 1)]
    ids = {episode_id(job, "a") for job in [one, *others]} | {episode_id(one, "b")}
    assert len(ids) == 7 and episode_id(Job(task(0), 1, group_id="g"), "a") == episode_id(one, "a")


def test_freed_rows_are_filled_in_the_lists_order() -> None:
    seen: list[tuple[list[int], list[str]]] = []

    class Watching(ScriptedPolicy):
        def act(self, rows, turns):
            seen.append((list(rows), [turn.observation.split(":")[0] for turn in turns]))
            return super().act(rows, turns)

    policy = Watching(lambda seed, name: Scripted(["up"] if seed == 1 else ["wait"]), policy_id="s", version="v")
    mixed = [Job(task(number), seed) for number, seed in enumerate([2, 1, 2, 1, 1])]
    episodes, _ = run(policy, mixed, rows=2, max_steps=8)
    assert episodes.num_rows == 5 and all(rows == sorted(rows) and len(rows) <= 2 for rows, _ in seen)
    assert [names for _, names in seen[:6]] == [["toy-0", "toy-1"]] * 5 + [["toy-0", "toy-2"]]  # toy-1 solved its task after 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, temperature: float) -> None:
    files = {}
    for workers in (1, 3):
        tables = run(language_model(rows=4, temperature=temperature), jobs(5, samples=2), workers, rows=4)
        for kind, table in zip(("episodes", "steps"), tables, strict=True):
            write_table(tmp_path / f"{kind}-{workers}", kind, table)
            files[kind, workers] = (tmp_path / f"{kind}-{workers}").read_bytes()
    assert files["episodes", 1] == files["episodes", 3] and files["steps", 1] == files["steps", 3]


def test_a_shard_is_the_same_bytes_after_others_and_in_a_new_process(tmp_path: Path) -> None:
    shards = [jobs(8, seed=1), jobs(3, seed=2)]
    one = language_model(max_tokens=150)
    run(one, shards[0])
    for name, policy in (("after", one), ("fresh", language_model(max_tokens=150))):
        write_table(tmp_path / name, "steps", run(policy, shards[1])[1])
    assert (tmp_path / "after").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_what_is_stored_is_what_the_engine_wrote_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, read, wrote = language_model(), {}, {}
    reply = policy.engine.reply

    def spy(slots, new, *more):
        found = reply(slots, new, *more)
        for slot, ids, one in zip(slots, new, found, strict=True):
            read.setdefault(slot, []).append(list(ids))
            wrote.setdefault(slot, []).append(one)
        return found

    monkeypatch.setattr(policy.engine, "reply", spy)
    monkeypatch.setattr(type(policy.template), "replies_ids", lambda *_: pytest.fail("a generated reply was encoded"))
    episodes, steps = run(policy, jobs(8))
    sequences = {one.episode_id: one for one in sequences_of(steps)}
    for slot, row in enumerate(sorted(episodes.to_pylist(), key=lambda row: row["task_id"])):
        mine = steps_of(steps, row["episode_id"])
        assert [one["prompt_ids"] for one in mine] == read[slot]
        assert [one["reply_ids"] for one in mine] == [one.ids for one in wrote[slot]]
        for one, generated in zip(mine, wrote[slot], strict=True):
            np.testing.assert_array_equal(one["logprobs"], np.float32(generated.logprobs))
        ids = sequences[row["episode_id"]].ids
        assert ids.tolist() == [token for one in mine for token in one["prompt_ids"] + one["reply_ids"]]
        full = tiny.reference_logprobs(policy.engine.model, ids).numpy()
        at = sequences[row["episode_id"]].role == 1
        np.testing.assert_allclose(sequences[row["episode_id"]].old_logprobs[at], np.concatenate([[0.0], full])[at], atol=1e-4)


def test_the_token_budget_truncates_the_episode_and_bounds_all_of_it() -> None:
    episodes, steps = run(language_model(max_tokens=60), jobs(8), max_steps=50)
    ends = set()
    for row in episodes.to_pylist():
        mine = steps_of(steps, row["episode_id"])
        total = sum(len(one["prompt_ids"]) + len(one["reply_ids"]) for one in mine)
        assert total <= 60 and all(len(one["reply_ids"]) <= 10 for one in mine)
        assert row["truncated"] and not row["terminated"] and row["error"] is None and row["n_steps"] == len(mine) < 50
        ends.add(total)
    assert max(ends) > 50


def test_a_first_observation_beyond_the_budget_truncates_at_once() -> None:
    episodes, steps = run(language_model(max_tokens=4), jobs(3))
    assert steps.num_rows == 0 and all(row["truncated"] and row["n_steps"] == 0 for row in episodes.to_pylist())


class _Says:
    """An engine that writes what it is told."""

    slots = 8

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def clear(self, slots) -> None: ...

    def reset(self) -> None: ...

    def reply(self, slots, new_ids, keys, limits, temperature) -> list[Generated]:
        return [Generated(self.ids[:limit], [-1.0] * len(self.ids[:limit]), [0.0] * len(self.ids[:limit])) for limit in limits]


def test_a_reply_that_is_cut_holds_no_action_and_is_a_format_error() -> None:
    template = tiny.template()
    [ids] = template.replies_ids(["> up"])
    for limit, action, ok in ((len(ids), "up", True), (len(ids) - 1, "", False)):
        policy = LanguageModelPolicy(_Says(ids), template, policy_id="p", version="v", temperature=1.0, max_tokens=200, max_reply_tokens=limit)
        _, steps = run(policy, jobs(1), max_steps=1)
        [step] = steps.to_pylist()
        assert (step["reply"], step["action"], step["format_ok"], step["valid"]) == ("> up", action, ok, ok)
        assert step["reply_ids"] == ids[:limit]  # with the end-of-turn where it was written


def test_nothing_to_play_is_two_empty_tables() -> None:
    episodes, steps = run(scripted("up"), [])
    assert episodes.num_rows == steps.num_rows == 0


def test_rows_describe_their_job() -> None:
    job = Job(task(2), 7, 3, 4, 5, "4/5/toy-2")
    [row] = run(scripted("up"), [job])[0].to_pylist()
    wanted = {"env": "toy", "env_version": "1", "task_id": "toy-2", "split": "train", "stratum": "count", "cluster": "room-2", "policy_id": "scripted",
              "round": 4, "iteration": 5, "group_id": "4/5/toy-2", "sample": 3, "seed": 7, "temperature": None,
              "tokenizer_id": tiny.template().tokenizer_id}
    assert {name: row[name] for name in wanted} == wanted
    json.dumps(row)
