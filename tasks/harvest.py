"""Trajectories of every policy of the pool: scripted ones, the actor as it stands, actors of other sizes, and served models."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.envs.base import Task
from ratchet.envs.benchmarks import open_pool
from ratchet.episodes.files import write_table
from ratchet.evaluation.panels import read_panel
from ratchet.policies.base import Policy
from ratchet.policies.served import ServedPolicy
from ratchet.rollout.play import Job
from tasks.common import Stage, main, stop_reason
from tasks.rollouts import (
    check_failures,
    expert_policy,
    failed_actions,
    keyed_choice,
    model_policy,
    play_shards,
    random_policy,
    served_policy,
    share_counts,
    verbose_policy,
)


def run(stage: Stage) -> None:
    """Writes data/rounds/K/harvest."""
    assert stage.key is not None
    settings = stage.settings
    previous = settings.rounds[stage.key].prev
    if reason := stop_reason(stage, previous):
        return stage.skip(reason)
    pool = settings.harvest.pool
    if any(member.policy in settings.actors for member in pool):
        stage.call_players()
    tasks = keyed_choice(read_panel(stage.path("data/panels/train.json")).tasks, settings.harvest.episodes, settings.seed, 2, int(stage.key))
    tables: list[tuple[pa.Table, pa.Table]] = []
    served: dict[str, dict[str, int]] = {}
    start = 0
    for member, count in zip(pool, share_counts([member.share for member in pool], settings.harvest.episodes), strict=True):
        tables.append(_member(stage, member.policy, tasks[start : start + count], previous, served))
        start += count
    episodes, steps = pa.concat_tables([e for e, _ in tables]), pa.concat_tables([s for _, s in tables])
    write_table(stage.out(f"data/rounds/{stage.key}/harvest/episodes.parquet"), "episodes", episodes)
    write_table(stage.out(f"data/rounds/{stage.key}/harvest/steps.parquet"), "steps", steps)
    errors = sum(error is not None for error in episodes["error"].to_pylist())
    stage.metrics({"episodes": episodes.num_rows, "errors": errors, "by_policy": by_policy(episodes, steps), "served": served})
    stage.finish()


def _member(stage: Stage, name: str, tasks: list[Task], previous: str, served: dict[str, dict[str, int]]) -> tuple[pa.Table, pa.Table]:
    """Plays one policy's share; what a served model cost goes into `served`."""
    assert stage.key is not None
    settings = stage.settings
    jobs = [Job(task, settings.seed, round=int(stage.key), group_id=f"{stage.key}/{name}/{task.task_id}") for task in tasks]
    with (
        _policy(stage, name, previous) as policy,
        open_pool(stage.path("data/games"), settings.env, ["train"], admissible=policy.needs_admissible) as pool,
    ):
        if not isinstance(policy, ServedPolicy):
            return play_shards(stage, name, jobs, policy, pool, shard=settings.harvest.shard)
        accept = partial(check_failures, stage, name)
        episodes, steps = play_shards(stage, name, jobs, policy, pool, shard=settings.harvest.shard, accept=accept)
        served[name] = {**policy.counts, "actions": steps.num_rows, "failures": failed_actions(steps)}
        return episodes, steps


def _policy(stage: Stage, name: str, previous: str) -> AbstractContextManager[Policy]:
    settings = stage.settings
    if name in settings.served:
        return served_policy(stage, name, settings.served[name], settings.harvest.temperature)
    if name == "expert":
        return nullcontext(expert_policy(settings, stage.path("data/games")))
    if name == "verbose":
        return nullcontext(verbose_policy(settings, stage.path("data/games")))
    if name == "random":
        return nullcontext(random_policy(settings))
    folder = stage.path(f"models/rounds/{previous}/start" if name == settings.actor else f"models/warm/{name}")
    rows, temperature = settings.harvest.shard, settings.harvest.temperature
    return nullcontext(model_policy(folder, settings, policy_id=name, rows=rows, temperature=temperature))


def by_policy(episodes: pa.Table, steps: pa.Table) -> dict[str, dict[str, Any]]:
    """Success, lengths and invalid share of each policy, errors left out."""
    owner = dict(zip(episodes["episode_id"].to_pylist(), episodes["policy_id"].to_pylist(), strict=True))
    step_owner = np.array([owner[one] for one in steps["episode_id"].to_pylist()])
    invalid = ~np.asarray(steps["valid"].to_pylist(), bool)
    out: dict[str, dict[str, Any]] = {}
    for name in sorted(set(owner.values())):
        mine = episodes.filter(pc.and_(pc.equal(episodes["policy_id"], name), pc.is_null(episodes["error"])))
        chosen = step_owner == name
        out[name] = {
            "episodes": mine.num_rows,
            "success": float(np.mean(mine["solved"].to_pylist())) if mine.num_rows else None,
            "mean_steps": float(np.mean(mine["n_steps"].to_pylist())) if mine.num_rows else None,
            "mean_tokens": float(np.mean(mine["n_tokens"].to_pylist())) if mine.num_rows else None,
            "invalid_share": float(invalid[chosen].mean()) if chosen.any() else None,
        }
    return out


if __name__ == "__main__":
    main("harvest", run, "round")
