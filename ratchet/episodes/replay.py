"""Recorded episodes played again: what was written down must be what the environment says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import EnvPool, Failure
from ratchet.errors import RatchetError
from ratchet.rollout.noise import episode_key

BATCH = 64
TASK_FIELDS = ("env", "env_version", "task_id", "split", "stratum", "cluster", "seed")
STEP_FIELDS = ["episode_id", "t", "observation", "action", "reward", "score", "valid", "repeated"]
SHOWN = 160  # characters of a text in a mismatch


@dataclass
class _Replay:
    """One recorded episode, its steps in order, and where its second playing stands."""

    episode: dict[str, Any]
    steps: list[dict[str, Any]]
    t: int = 0
    observation: str = ""
    mismatch: dict[str, Any] | None = None

    def differs(self, what: str, recorded: Any, replayed: Any, t: int) -> bool:
        if recorded == replayed:
            return False
        shown = [value[:SHOWN] if isinstance(value, str) else value for value in (recorded, replayed)]
        self.mismatch = {"episode_id": self.episode["episode_id"], "t": t, "what": what, "recorded": shown[0], "replayed": shown[1]}
        return True


def replay(
    episodes: pa.Table, steps: pa.Table, share: float, seed: int, pool: EnvPool, tasks: Mapping[str, Task] | None = None
) -> dict[str, Any]:
    """Plays a random `share` of the episodes again, action by action, in fresh environments.

    Compared are every observation, reward, score, validity and whether the observation changed, and the episode's
    outcome, score and end. Which episodes: a hash of (seed, episode_id); at least one where `share` > 0. Episodes that
    ended by an error of their environment are left out. `tasks` gives the tasks by id where an environment needs their own
    seed (an episode keeps the seed of its sampling); without it a task is what its episode says.

    Returns `{"replayed", "mismatched", "rows"}`: two counts, and for each mismatched episode the first difference
    `{"episode_id", "t", "what", "recorded", "replayed"}`, sorted by id.
    """
    chosen = _chosen(episodes, share, seed)
    rows: list[dict[str, Any]] = []
    for batch in _batches(chosen, steps):
        _play(batch, pool, [_task_of(one.episode, tasks) for one in batch])
        rows += [one.mismatch for one in batch if one.mismatch is not None]
    return {"replayed": chosen.num_rows, "mismatched": len(rows), "rows": rows}


def _chosen(episodes: pa.Table, share: float, seed: int) -> pa.Table:
    whole = episodes.filter(pc.is_null(episodes["error"])).sort_by("episode_id")
    if share <= 0 or whole.num_rows == 0:
        return whole.slice(0, 0)
    draws = np.array([float(episode_key(seed, name, "replay")) for name in whole["episode_id"].to_pylist()]) / 2.0**64
    taken = draws < share
    taken[draws.argmin()] = True
    return whole.filter(pa.array(taken))


def _batches(episodes: pa.Table, steps: pa.Table) -> Iterator[list[_Replay]]:
    wanted = steps.select(STEP_FIELDS).filter(pc.is_in(steps["episode_id"], value_set=episodes["episode_id"].combine_chunks()))
    by_episode: dict[str, list[dict[str, Any]]] = {}
    for step in wanted.sort_by([("episode_id", "ascending"), ("t", "ascending")]).to_pylist():
        by_episode.setdefault(step["episode_id"], []).append(step)
    records = episodes.to_pylist()
    for begin in range(0, len(records), BATCH):
        yield [_Replay(record, by_episode.get(record["episode_id"], [])) for record in records[begin : begin + BATCH]]


def _task_of(episode: Mapping[str, Any], tasks: Mapping[str, Task] | None) -> Task:
    if tasks is None:
        return Task(*(episode[name] for name in TASK_FIELDS))
    if episode["task_id"] not in tasks:
        raise RatchetError(f"episode {episode['episode_id']} plays task {episode['task_id']}, which is not among the tasks given")
    return tasks[episode["task_id"]]


def _play(batch: list[_Replay], pool: EnvPool, tasks: list[Task]) -> None:
    turns = pool.reset(range(len(batch)), tasks)
    running = [row for row, turn in enumerate(turns) if _begins(batch[row], turn)]
    while running:
        actions = [batch[row].steps[batch[row].t]["action"] or "" for row in running]
        turns = pool.step(running, actions)
        running = [row for row, turn in zip(running, turns, strict=True) if _goes_on(batch[row], turn)]


def _begins(one: _Replay, turn: Turn | Failure) -> bool:
    if isinstance(turn, Failure):
        one.differs("environment", None, turn.reason, 0)
        return False
    one.observation = turn.observation
    if not one.steps:
        return one.differs("steps", one.episode["n_steps"], 0, 0)
    return not one.differs("observation", one.steps[0]["observation"], turn.observation, 0)


def _goes_on(one: _Replay, turn: Turn | Failure) -> bool:
    """Compares what follows step t with the record; False where the episode has ended or differs."""
    t, step = one.t, one.steps[one.t]
    if isinstance(turn, Failure):
        one.differs("environment", None, turn.reason, t)
        return False
    repeated, one.observation = turn.observation == one.observation, turn.observation
    found = {"valid": turn.valid, "repeated": repeated, "reward": _single(turn.reward), "score": _single(turn.score)}
    if any(one.differs(what, step[what], value, t) for what, value in found.items()):
        return False
    one.t += 1
    if one.t < len(one.steps) and not turn.done:
        return not one.differs("observation", one.steps[one.t]["observation"], turn.observation, one.t)
    end = {"n_steps": one.t, "solved": turn.solved, "score": _single(max(0.0, turn.score)), "terminated": turn.done}
    any(one.differs(what, one.episode[what], value, t) for what, value in end.items())
    return False


def _single(value: float) -> float:
    """As it is stored: in single precision."""
    return float(np.float32(value))
