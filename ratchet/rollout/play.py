"""Environments × policy → episodes.

The unit of work and of resume is a shard: a fixed list of episodes, played turn by turn, a freed row refilled in the
list's order. Who plays beside whom depends on the shard alone, so the same shard gives the same bytes whenever it is played,
however many environment workers there are, and whichever other shard is played in turns with it.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ratchet.clock import CLOCK
from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import EnvPool, Failure, Ticket
from ratchet.episodes.files import table_of
from ratchet.episodes.formats import action_type
from ratchet.policies.base import Policy, Reply

Tables = tuple[pa.Table, pa.Table]
"""(episodes, steps)."""
OnEpisode = Callable[[dict[str, Any]], None]

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
    on_episode: OnEpisode | None = None,
) -> Tables:
    """Plays one shard on `rows` rows; returns its (episodes, steps) tables.

    An episode is truncated after `max_steps` turns, and after `max_invalid` inadmissible actions in a row. An environment that
    crashed or hung ends its episode as `error`; the caller decides how many of those are too many. `on_episode` hears of each row
    of the episodes when it ends.
    """
    limits = {"max_steps": max_steps, "rows": rows, "max_invalid": max_invalid}
    [(_, tables)] = play_alternating([jobs], [policy], pool, **limits, on_episode=on_episode)
    return tables


def play_alternating(
    shards: Iterable[Sequence[Job]],
    policies: Sequence[Policy],
    pool: EnvPool,
    *,
    max_steps: int,
    rows: int,
    max_invalid: int | None = None,
    on_episode: OnEpisode | None = None,
) -> Iterator[tuple[int, Tables]]:
    """Plays as many shards at a time as there are policies; yields (place of the shard, its tables) when one is done.

    While the environments step one shard, its policy's turn is over and the next shard's policy works. Policies share no state of
    a row (`LanguageModelPolicy.twin`): each is told and asked the same, in the same order, as where its shard is played alone.
    """
    waiting = enumerate(shards)
    free = deque(range(len(policies)))
    playing: deque[tuple[int, int, Iterator[Tables | None]]] = deque()
    while True:
        while free and (following := next(waiting, None)) is not None:
            lane, (place, jobs) = free.popleft(), following
            shard = _Shard(jobs, policies[lane], pool, lane * rows, rows, max_steps, max_invalid, on_episode)
            playing.append((lane, place, shard.play()))
        if not playing:
            return
        lane, place, shard_turns = playing.popleft()
        if (tables := next(shard_turns)) is None:
            playing.append((lane, place, shard_turns))
        else:
            free.append(lane)
            yield place, tables


class _Shard:
    """One shard as it is played. Its row r is row `first` + r of the pool."""

    def __init__(
        self,
        jobs: Sequence[Job],
        policy: Policy,
        pool: EnvPool,
        first: int,
        rows: int,
        max_steps: int,
        max_invalid: int | None,
        on_episode: OnEpisode | None,
    ) -> None:
        self.policy, self.pool, self.first, self.on_episode = policy, pool, first, on_episode
        self.max_steps, self.max_invalid = max_steps, max_invalid
        self.waiting = list(reversed(jobs))
        self.running: dict[int, _Running] = {}
        self.free = list(range(min(rows, len(jobs))))
        self.episodes: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []

    def play(self) -> Iterator[Tables | None]:
        """None each time that the environments have something to do, and at last the tables."""
        self.policy.start()
        while self.waiting or self.running:
            yield from self._start()
            yield from self._turn()
        yield table_of("episodes", self.episodes), table_of("steps", self.steps)

    def _start(self) -> Iterator[None]:
        """Fills the free rows with the next jobs."""
        self.free.sort()
        starting = [(self.free.pop(0), self.waiting.pop()) for _ in range(min(len(self.free), len(self.waiting)))]
        if not starting:
            return
        ticket = self._submit([row for row, _ in starting], [job.task for _, job in starting])
        yield None
        for (row, job), turn in zip(starting, self._collect(ticket), strict=True):
            failed = isinstance(turn, Failure)
            self.running[row] = _Running(job, episode_id(job, self.policy.policy_id), Turn("", ()) if failed else turn)
            if failed:
                self._finish(row, error=f"{turn.kind}: {turn.reason}")
            else:
                self.policy.begin(row, job.task, turn, self.running[row].id, job.seed)

    def _turn(self) -> Iterator[None]:
        """One action of every row that runs."""
        order = sorted(self.running)
        if not order:
            return
        replies = self.policy.act(order, [self.running[row].turn for row in order])
        for row, reply in zip(order, replies, strict=True):
            if reply is None:
                self._finish(row, truncated=True)
        acting = [(row, reply) for row, reply in zip(order, replies, strict=True) if reply is not None]
        if not acting:
            return
        ticket = self._submit([row for row, _ in acting], [reply.action for _, reply in acting])
        yield None
        for (row, reply), result in zip(acting, self._collect(ticket), strict=True):
            _advance(self.running[row], reply, result, self.policy)
            if isinstance(result, Failure):
                self._finish(row, error=f"{result.kind}: {result.reason}")
            elif result.done:
                self._finish(row)
            elif len(self.running[row].steps) >= self.max_steps or self.running[row].invalid == self.max_invalid:
                self._finish(row, truncated=True)
        CLOCK.counts["env_steps"] += len(acting)

    def _submit(self, rows: list[int], payloads: Sequence[Task | str]) -> Ticket:
        with CLOCK.phase("environment"):
            return self.pool.submit([self.first + row for row in rows], payloads)

    def _collect(self, ticket: Ticket) -> list[Turn | Failure]:
        with CLOCK.phase("environment"):
            return self.pool.collect(ticket)

    def _finish(self, row: int, *, truncated: bool = False, error: str | None = None) -> None:
        one = self.running.pop(row)
        self.free.append(row)
        self.episodes.append(_episode_row(one, self.policy, truncated=truncated, error=error))
        self.steps.extend(one.steps)
        CLOCK.counts["episodes"] += 1
        if self.on_episode is not None:
            self.on_episode(self.episodes[-1])


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
