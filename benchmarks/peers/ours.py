"""Our side of an iteration: LocalEngine, play, credited, learn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.peers.spec import Iteration, peak_mb
from benchmarks.peers.world import next_tasks, tasks_of
from ratchet.clock import CLOCK
from ratchet.engines.local import LocalEngine
from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import EnvPool
from ratchet.episodes.template import Template, load_template
from ratchet.errors import RatchetError
from ratchet.learners.actor import ActorLearner
from ratchet.learners.online import credited, learn
from ratchet.losses.clipped_surrogate import ClippedSurrogate
from ratchet.models.build import load_model
from ratchet.policies.base import Reply
from ratchet.policies.language_model import LanguageModelPolicy
from ratchet.rollout.play import Job, play

FACTORY = "benchmarks.peers.world:make"
STEP_LIMIT_S = 60.0


class AnyText(LanguageModelPolicy):
    """Whatever the model writes is the action, and it is noted when each turn begins and ends."""

    def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
        self.began.append(time.perf_counter())
        replies = super().act(rows, turns)
        return [None if one is None else replace(one, action=one.text, format_ok=True) for one in replies]

    began: list[float]


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


def rollout(
    model: Any, template: Template, pool: EnvPool, tasks: Sequence[Task], spec: Iteration, iteration: int
) -> tuple[pa.Table, pa.Table, list[float]]:
    """(episodes, steps, when each turn began)."""
    engine = LocalEngine(model, slots=spec.episodes, length=spec.tokens + 1, end=template.ends, pad=template.pad)
    policy = AnyText(
        engine,
        template,
        policy_id="actor",
        version=str(iteration),
        temperature=1.0,
        max_tokens=spec.tokens + 1,
        max_reply_tokens=spec.write,
    )
    policy.began = []
    jobs = [Job(task, spec.seed, sample, 1, iteration, f"{iteration}/{task.task_id}") for task in tasks for sample in range(spec.samples)]
    episodes, steps = play(jobs, policy, pool, max_steps=spec.turns, rows=spec.episodes)
    return episodes, steps, policy.began


def iterate(learner: ActorLearner, template: Template, pool: EnvPool, tasks: Sequence[Task], spec: Iteration, iteration: int) -> dict[str, Any]:
    """One iteration, timed. Raises RatchetError where a group was silent or an episode ended early: that would be less work."""
    CLOCK.clear()
    began, cpu = time.perf_counter(), time.process_time()
    episodes, steps, turns = rollout(learner.model, template, pool, tasks, spec, iteration)
    played = time.perf_counter()
    batch = credited(episodes, steps, credit="grpo", reward="score")
    metrics = learn(learner, batch, steps=1, lr=spec.lr, reference=None)
    ended = time.perf_counter()
    if batch.zero_variance_groups or steps.num_rows != spec.turns * spec.episodes or metrics["skipped_steps"]:
        raise RatchetError(
            f"an iteration of {spec.episodes} episodes × {spec.turns} turns had {steps.num_rows} steps, {batch.zero_variance_groups} silent "
            f"groups and {metrics['skipped_steps']} skipped updates; what is measured is not the whole work"
        )
    return {
        "seconds": ended - began,
        "rollout_s": played - began,
        "update_s": ended - played,
        "cpu_s": time.process_time() - cpu,
        "turn_s": [after - before for before, after in pairwise(turns)],
        "tokens_read": sum(len(ids) for ids in steps["prompt_ids"].to_pylist()),
        "tokens_written": sum(len(ids) for ids in steps["reply_ids"].to_pylist()),
        "turns": steps.num_rows,
        "clock": CLOCK.report(),
        "logprob_max_diff": metrics["logprob_max_diff"],
    }


def measure(spec: Iteration) -> dict[str, Any]:
    """`spec.iterations` timed iterations behind a short one that warms up, and the peak memory of this process and its workers."""
    folder = Path(spec.folder)
    template, tasks = load_template(folder / "tokenizer"), tasks_of(folder)
    learner = learner_of(load_model(folder / "model"), spec)
    with EnvPool(FACTORY, {"folder": spec.folder, "tokens": spec.read}, spec.workers, STEP_LIMIT_S) as pool:
        short = replace(spec, turns=2)
        iterate(learner, template, pool, next_tasks(tasks, spec.tasks, 0), short, 0)
        found = [iterate(learner, template, pool, next_tasks(tasks, spec.tasks, number), spec, number) for number in range(1, spec.iterations + 1)]
        memory = peak_mb(tuple(pool.pids()))
    return {"iterations": found, "peak_mb": memory, "peak_mb_without_workers": peak_mb()}
