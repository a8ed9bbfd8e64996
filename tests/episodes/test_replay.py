"""What is recorded must come again when the same actions are played; what does not is found and named."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ratchet.envs.base import Turn
from ratchet.envs.pool import EnvPool
from ratchet.episodes.files import table_of
from ratchet.episodes.replay import replay
from ratchet.errors import RatchetError
from tests.envs.toy import make, task

Rows = list[dict[str, Any]]
SCRIPTS = [["up"] * 5, ["up", "x", "up"], ["wait"], ["up", "up", "wait", "up", "up", "up"]]


def record(count: int = 8) -> tuple[Rows, Rows]:
    """Episodes of the toy environment as a rollout writes them."""
    episodes: Rows = []
    steps: Rows = []
    for number in range(count):
        toy, one = make(), task(number)
        turn = toy.reset(one)
        name = f"episode-{number:02d}"
        script = SCRIPTS[number % len(SCRIPTS)]
        for t, action in enumerate(script):
            before, turn = turn, toy.step(action)
            steps.append(step_row(name, t, before, action, turn))
        episodes.append(
            {"episode_id": name, "env": "toy", "env_version": "1", "task_id": one.task_id, "split": "train", "stratum": "count",
             "cluster": one.cluster, "seed": 0, "solved": turn.solved, "score": turn.score, "terminated": turn.done,
             "truncated": not turn.done, "n_steps": len(script)}
        )
    return episodes, steps


def step_row(name: str, t: int, before: Turn, action: str, after: Turn) -> dict[str, Any]:
    return {"episode_id": name, "t": t, "observation": before.observation, "action": action, "reward": after.reward,
            "score": after.score, "valid": after.valid, "repeated": after.observation == before.observation}


def tables(rows: tuple[Rows, Rows]) -> tuple[pa.Table, pa.Table]:
    return table_of("episodes", rows[0]), table_of("steps", rows[1])


def run(rows: tuple[Rows, Rows], share: float = 1.0, seed: int = 1, **more: Any) -> dict[str, Any]:
    with EnvPool("tests.envs.toy:make", {}, 2, 5.0) as pool:
        return replay(*tables(rows), share, seed, pool, **more)


def test_a_true_record_comes_again() -> None:
    assert run(record()) == {"replayed": 8, "mismatched": 0, "rows": []}


@pytest.mark.parametrize(("where", "key", "value", "t"), [
    ("episode", "solved", False, 4), ("episode", "score", 0.5, 4), ("episode", "terminated", False, 4), ("episode", "n_steps", 6, 4),
    ("step", "observation", "elsewhere", 2), ("step", "valid", False, 2), ("step", "reward", 1.0, 2), ("step", "score", 0.5, 2),
    ("step", "repeated", True, 2)])
def test_a_planted_difference_is_found_and_named(where: str, key: str, value: Any, t: int) -> None:
    rows = record()
    changed = rows[0][4] if where == "episode" else next(row for row in rows[1] if row["episode_id"] == "episode-04" and row["t"] == t)
    recorded = changed[key]
    changed[key] = value
    found = run(rows)
    assert (found["replayed"], found["mismatched"]) == (8, 1)
    assert found["rows"] == [{"episode_id": "episode-04", "t": t, "what": key, "recorded": value, "replayed": recorded}]


def test_a_missing_step_and_an_exchanged_action_are_found() -> None:
    rows = record()
    rows[1][:] = [row for row in rows[1] if (row["episode_id"], row["t"]) != ("episode-00", 4)]
    next(row for row in rows[1] if row["episode_id"] == "episode-01")["action"] = "wait"
    found = run(rows)
    assert [(row["episode_id"], row["what"]) for row in found["rows"]] == [("episode-00", "n_steps"), ("episode-01", "observation")]


def test_an_environment_that_fails_is_a_mismatch() -> None:
    rows = record()
    rows[1][1]["action"] = "exit"
    found = run(rows)
    assert found["mismatched"] == 1 and found["rows"][0]["what"] == "environment" and "exit code 3" in found["rows"][0]["replayed"]


def test_the_share_is_a_fixed_random_choice() -> None:
    rows = record(200)
    played = run(rows, 0.25)["replayed"]
    assert 30 < played < 70 and run(rows, 0.25)["replayed"] == played
    assert run(rows, 0.001)["replayed"] == 1 and run(rows, 0.0)["replayed"] == 0


def test_the_choice_depends_on_the_seed() -> None:
    rows = record(100)
    for episode in rows[0]:
        episode["score"] = 0.25
    chosen = [tuple(row["episode_id"] for row in run(rows, 0.2, seed)["rows"]) for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_episodes_of_a_failed_environment_are_left_out() -> None:
    rows = record()
    rows[0][3]["error"] = "crash"
    assert run(rows)["replayed"] == 7


def test_tasks_can_be_given() -> None:
    rows = record(2)
    assert run(rows, tasks={f"toy-{number}": task(number) for number in range(2)})["mismatched"] == 0
    with pytest.raises(RatchetError, match="toy-1"):
        run(rows, tasks={"toy-0": task(0)})
