"""Environments × policy → episodes.

The unit of work and of resume is a shard: a fixed list of episodes, played turn by turn, a freed row refilled in the
list's order. Who plays beside whom depends on the shard alone, so the same shard gives the same bytes whenever it is played
and however many environment workers there are.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import EnvPool, Failure
from ratchet.episodes.files import table_of
from ratchet.episodes.formats import action_type
from ratchet.policies.base import Policy, Reply

NAMESPACE = uuid.UUID("6d0c1c8e-3f0e-5b7a-9a53-2a8a0f1f7c11")


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play. `group_id` joins the samples of one task from one policy version."""

    task: Task
    seed: int
    sample: int = 0
    round: int = 0
    iteration: int = 0
    group_id: str = ""


def episode_id(job: Job, policy_id: str) -> str:
    """uuid5 of env, version, task, policy, round, iteration, sample, seed."""
    task = job.task
    parts = (task.env, task.env_version, task.task_id, policy_id, job.round, job.iteration, job.sample, job.seed)
    return str(uuid.uuid5(NAMESPACE, "|".join(map(str, parts))))


@dataclass
class _Running:
    job: Job
    id: str
    turn: Turn
    steps: list[dict[str, Any]] = field(default_factory=list)
    invalid: int = 0  # actions in a row that did nothing because they were not admissible


def play(
    jobs: Sequence[Job],
    policy: Policy,
    pool: EnvPool,
    *,
    max_steps: int,
    rows: int,
    max_invalid: int | None = None,
    on_episode: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Plays one shard on `rows` rows; returns its (episodes, steps) tables.

    An episode is truncated after `max_steps` turns, and after `max_invalid` inadmissible actions in a row. An environment that
    crashed or hung ends its episode as `error`; the caller decides how many of those are too many.
    """
    waiting = list(reversed(jobs))
    running: dict[int, _Running] = {}
    free = list(range(min(rows, len(jobs))))
    episodes: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []

    def finish(row: int, *, truncated: bool = False, error: str | None = None) -> None:
        one = running.pop(row)
        free.append(row)
        episodes.append(_episode_row(one, policy, truncated=truncated, error=error))
        steps.extend(one.steps)
        if on_episode is not None:
            on_episode(episodes[-1])

    while waiting or running:
        free.sort()
        _start(waiting, free, running, policy, pool, finish)
        order = sorted(running)
        if not order:
            continue
        replies = policy.act(order, [running[row].turn for row in order])
        for row, reply in zip(order, replies, strict=True):
            if reply is None:
                finish(row, truncated=True)
        acting = [(row, reply) for row, reply in zip(order, replies, strict=True) if reply is not None]
        results = pool.step([row for row, _ in acting], [reply.action for _, reply in acting])
        for (row, reply), result in zip(acting, results, strict=True):
            _advance(running[row], reply, result, policy)
            if isinstance(result, Failure):
                finish(row, error=f"{result.kind}: {result.reason}")
            elif result.done:
                finish(row)
            elif len(running[row].steps) >= max_steps or running[row].invalid == max_invalid:
                finish(row, truncated=True)
    return table_of("episodes", episodes), table_of("steps", steps)


def _start(
    waiting: list[Job],
    free: list[int],
    running: dict[int, _Running],
    policy: Policy,
    pool: EnvPool,
    finish: Callable[..., None],
) -> None:
    """Fills the free rows with the next jobs."""
    starting = [(free.pop(0), waiting.pop()) for _ in range(min(len(free), len(waiting)))]
    if not starting:
        return
    turns = pool.reset([row for row, _ in starting], [job.task for _, job in starting])
    for (row, job), turn in zip(starting, turns, strict=True):
        failed = isinstance(turn, Failure)
        running[row] = _Running(job, episode_id(job, policy.policy_id), Turn("", ()) if failed else turn)
        if failed:
            finish(row, error=f"{turn.kind}: {turn.reason}")
        else:
            policy.begin(row, job.task, turn, running[row].id, job.seed)


def _advance(one: _Running, reply: Reply, result: Turn | Failure, policy: Policy) -> None:
    """Records the step that `reply` was and moves on to the environment's answer."""
    failed = isinstance(result, Failure)
    one.steps.append(
        {
            "episode_id": one.id,
            "t": len(one.steps),
            "observation": one.turn.observation,
            "reply": reply.text,
            "action": reply.action,
            "action_type": action_type(reply.action),
            "prompt_ids": reply.prompt_ids,
            "reply_ids": reply.reply_ids,
            "logprobs": reply.logprobs,
            "entropy": reply.entropy,
            "policy_version": reply.version or policy.version,
            "tokens_from": reply.tokens_from,
            "reward": 0.0 if failed else result.reward,
            "score": one.turn.score if failed else result.score,
            "format_ok": reply.format_ok,
            "valid": False if failed else result.valid,
            "repeated": False if failed else result.observation == one.turn.observation,
        }
    )
    if not failed:
        one.turn = result
        one.invalid = 0 if result.valid else one.invalid + 1


def _episode_row(one: _Running, policy: Policy, *, truncated: bool, error: str | None) -> dict[str, Any]:
    job, task = one.job, one.job.task
    return {
        "episode_id": one.id,
        "env": task.env,
        "env_version": task.env_version,
        "task_id": task.task_id,
        "split": task.split,
        "stratum": task.stratum,
        "cluster": task.cluster,
        "policy_id": policy.policy_id,
        "round": job.round,
        "iteration": job.iteration,
        "group_id": job.group_id or one.id,
        "sample": job.sample,
        "seed": job.seed,
        "solved": error is None and one.turn.solved,
        "score": 0.0 if error else max(0.0, one.turn.score),
        "terminated": error is None and not truncated,
        "truncated": truncated,
        "error": error,
        "n_steps": len(one.steps),
        "n_tokens": sum(len(step["reply_ids"]) for step in one.steps),
        "tokenizer_id": policy.tokenizer_id,
        "temperature": policy.temperature,
    }
