"""Our side of an iteration: LocalEngine, play, credited, learn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.peers.spec import Iteration, peak_mb
from benchmarks.peers.world import next_tasks, tasks_of
from ratchet.clock import CLOCK
from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import EnvPool
from ratchet.episodes.template import Template, load_template
from ratchet.errors import RatchetError
from ratchet.learners.actor import ActorLearner
from ratchet.learners.online import credited, learn
from ratchet.losses.clipped_surrogate import ClippedSurrogate
from ratchet.models.build import lay_weights, load_model, write_weights
from ratchet.policies.base import Reply
from ratchet.policies.language_model import LanguageModelPolicy, ModelSpec
from ratchet.rollout.play import Job, Tables, play
from ratchet.rollout.players import Players

FACTORY = "benchmarks.peers.world:make"
STEP_LIMIT_S = 60.0


@dataclass(frozen=True)
class AnyTextSpec(ModelSpec):
    """What a player builds an `AnyText` of; `folder` is that of `make_world`."""

    def policy(self, model: Any = None) -> AnyText:
        template = load_template(self.folder / "tokenizer")
        if model is None:
            model = load_model(self.folder / "model")
        if self.weights is not None:
            lay_weights(self.weights, model)
        return self.made(AnyText, model, template)


class AnyText(LanguageModelPolicy):
    """Whatever the model writes is the action, and it is noted when each turn begins."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.began: list[float] = []

    def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
        self.began.append(time.perf_counter())
        replies = super().act(rows, turns)
        return [None if one is None else replace(one, action=one.text, format_ok=True) for one in replies]


def learner_of(model: Any, spec: Iteration) -> ActorLearner:
    """The learner as the online stage makes it: token-mean clipped surrogate, AdamW."""
    return ActorLearner(
        model,
        [ClippedSurrogate(low=0.2, high=0.28)],
        optimizer="adamw",
        batch_tokens=spec.batch_tokens,
        max_grad_norm=1.0,
        temperature=1.0,
        autocast="bf16" if spec.bf16 else "none",
    )


def spec_of(spec: Iteration, rows: int, version: int, weights: Path | None = None) -> AnyTextSpec:
    return AnyTextSpec(Path(spec.folder), "actor", str(version), "plain", rows, 1.0, spec.tokens + 1, spec.write, weights)


def jobs_of(tasks: Sequence[Task], spec: Iteration, iteration: int) -> list[Job]:
    return [Job(task, spec.seed, sample, 1, iteration, f"{iteration}/{task.task_id}") for task in tasks for sample in range(spec.samples)]


def rollout(
    model: Any, template: Template, pool: EnvPool, tasks: Sequence[Task], spec: Iteration, iteration: int
) -> tuple[pa.Table, pa.Table, list[float]]:
    """(episodes, steps, when each turn began), played in this process, all rows at once."""
    policy = spec_of(spec, spec.episodes, iteration).made(AnyText, model, template)
    episodes, steps = play(jobs_of(tasks, spec, iteration), policy, pool, max_steps=spec.turns, rows=spec.episodes)
    return episodes, steps, policy.began


def side_by_side(model: Any, players: Players, pool: EnvPool, tasks: Sequence[Task], spec: Iteration, iteration: int) -> Tables:
    """(episodes, steps), as the online stage plays them: a shard a player."""
    jobs, rows = jobs_of(tasks, spec, iteration), -(-spec.episodes // spec.players)
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "weights.safetensors"
        write_weights(model, weights)
        shards = [jobs[start : start + rows] for start in range(0, len(jobs), rows)]
        played = dict(players.play(shards, spec_of(spec, rows, iteration, weights), pool, {"max_steps": spec.turns, "rows": rows}))
    tables = [played[place] for place in sorted(played)]
    return pa.concat_tables([episodes for episodes, _ in tables]), pa.concat_tables([steps for _, steps in tables])


def iterate(learner: ActorLearner, players: Players, pool: EnvPool, tasks: Sequence[Task], spec: Iteration, iteration: int) -> dict[str, Any]:
    """One iteration, timed. Raises RatchetError where a group was silent or an episode ended early: that would be less work."""
    CLOCK.clear()
    began, cpu = time.perf_counter(), time.process_time()
    episodes, steps = side_by_side(learner.model, players, pool, tasks, spec, iteration)
    played = time.perf_counter()
    batch = credited(episodes, steps, credit="grpo", reward="score")
    metrics = learn(learner, batch, steps=1, lr=spec.lr, reference=None)
    ended = time.perf_counter()
    check_whole(steps, spec)
    if batch.zero_variance_groups or metrics["skipped_steps"]:
        raise RatchetError(f"{batch.zero_variance_groups} groups were silent, {metrics['skipped_steps']} updates skipped: that is less work")
    return {
        "seconds": ended - began,
        "rollout_s": played - began,
        "update_s": ended - played,
        "cpu_s": time.process_time() - cpu,
        "tokens_read": sum(len(ids) for ids in steps["prompt_ids"].to_pylist()),
        "tokens_written": sum(len(ids) for ids in steps["reply_ids"].to_pylist()),
        "turns": steps.num_rows,
        "clock": CLOCK.report(),
        "logprob_max_diff": metrics["logprob_max_diff"],
    }


def check_whole(steps: pa.Table, spec: Iteration) -> None:
    """Raises RatchetError where an episode ended early."""
    if steps.num_rows != spec.turns * spec.episodes:
        raise RatchetError(f"{spec.episodes} episodes × {spec.turns} turns had {steps.num_rows} steps; what is measured is not the whole work")


def turns(spec: Iteration) -> dict[str, Any]:
    """Seconds of each turn of `spec.iterations` rollouts in this process, all rows at once; a short one before them warms up."""
    folder = Path(spec.folder)
    model, template, tasks = load_model(folder / "model"), load_template(folder / "tokenizer"), tasks_of(folder)
    found = []
    with EnvPool(FACTORY, {"folder": spec.folder, "tokens": spec.read}, spec.workers, STEP_LIMIT_S) as pool:
        for number in range(spec.iterations + 1):
            own = spec if number else replace(spec, turns=2)
            _, steps, began = rollout(model, template, pool, next_tasks(tasks, spec.tasks, number), own, number)
            check_whole(steps, own)
            found.append([after - before for before, after in pairwise(began)])
    return {"turn_s": found[1:]}


def measure(spec: Iteration) -> dict[str, Any]:
    """`spec.iterations` timed iterations behind a short one that warms up, and the peak memory of this process and its players."""
    folder = Path(spec.folder)
    tasks = tasks_of(folder)
    learner = learner_of(load_model(folder / "model"), spec)
    players = Players(spec.players, 1)
    with EnvPool(FACTORY, {"folder": spec.folder, "tokens": spec.read}, spec.workers, STEP_LIMIT_S) as pool:
        iterate(learner, players, pool, next_tasks(tasks, spec.tasks, 0), replace(spec, turns=2), 0)
        found = [iterate(learner, players, pool, next_tasks(tasks, spec.tasks, number), spec, number) for number in range(1, spec.iterations + 1)]
        memory = peak_mb(tuple(player.popen.pid for player in players.processes))
    players.close()
    return {"iterations": found, "peak_mb": memory, "peak_mb_without_players": peak_mb()}
