"""Online rounds: one iteration is rollouts, credit, and a few optimiser steps on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.credit import ESTIMATORS
from ratchet.credit.batch import batch_of
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import Sequence, sequences_of
from ratchet.learners.safety import sampled_agreement, watching


@dataclass(frozen=True)
class Credited:
    """Sequences of one iteration with their advantages, and what the groups looked like."""

    sequences: list[Sequence]
    groups: int
    zero_variance_groups: int


def credited(episodes: pa.Table, steps: pa.Table, *, credit: str, reward: str, options: Any = None, max_length: int | None = None) -> Credited:
    """Advantages for all episodes without error and with at least one step; a group that says nothing is silent and counted.

    `options` are the estimator's own; `max_length` are the tokens that an episode may have.
    """
    rows = [row for row in episodes.to_pylist() if row["error"] is None and row["n_steps"] > 0]
    batch = batch_of(rows, steps, reward=reward, max_length=max_length)
    advantages, silent = ESTIMATORS[credit](batch, options)
    ids = [row["episode_id"] for row in rows]
    sequences = sequences_of(steps, dict(zip(ids, advantages, strict=True)), ids)
    for one, row, quiet in zip(sequences, rows, silent, strict=True):
        one.silent, one.solved = bool(quiet), bool(row["solved"])
    quiet_groups = {group for group, quiet in zip(batch.groups, silent, strict=True) if quiet}
    return Credited(sequences, len(set(batch.groups)), len(quiet_groups))


def minibatches(sequences: list[Sequence], steps: int) -> list[list[Sequence]]:
    """The iteration's sequences dealt into `steps` batches, one for each optimiser step, in their order."""
    return [sequences[start::steps] for start in range(steps) if sequences[start::steps]]


def learn(learner: ActorLearner, batch: Credited, *, steps: int, lr: float, reference: dict[str, np.ndarray] | None) -> dict[str, Any]:
    """`steps` optimiser steps on the iteration's episodes; returns metrics, the skipped steps and how far the sampler's log-probs are
    from the learner's before the first step.

    They are compared on all that the first step learns from, in its own pass, which costs nothing. Where that pass computes in another
    precision than the sampler, or where nothing in it has a gradient, a few sequences get a pass of their own.
    """
    if reference is not None:
        for one in batch.sequences:
            one.reference_logprobs = reference[one.episode_id]
    first, *others = minibatches(batch.sequences, steps) or [[]]
    in_passing = learner.is_exact and any(learner.wants(one) for one in first)
    agreement = None if in_passing else sampled_agreement(learner, batch.sequences)
    with watching(learner) as watched:
        updates = [learner.update(first, lr)]
    updates += [learner.update(part, lr) for part in others]
    names = sorted({name for update in updates for name in update.metrics} - {watched.name})
    means = {name: _mean([update.metrics.get(name, 0.0) for update in updates]) for name in names}
    return {**means, **(agreement or watched).metrics(), "skipped_steps": sum(update.skipped for update in updates)}


def _mean(values: list[float]) -> float:
    """Of the finite ones: a skipped step is counted, its infinities must not hide the others' means (nor enter a JSON file)."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else 0.0
