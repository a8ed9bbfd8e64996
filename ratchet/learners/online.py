"""Online rounds: one iteration is rollouts, credit, and a few optimiser steps on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.credit import ESTIMATORS
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import REPLY, Sequence, sequences_of


@dataclass(frozen=True)
class Credited:
    """Sequences of one iteration with their advantages, and what the groups looked like."""

    sequences: list[Sequence]
    groups: int
    zero_variance_groups: int


def credited(episodes: pa.Table, steps: pa.Table, *, credit: str, reward: str) -> Credited:
    """Advantages for all episodes without error and with at least one step; a group without spread is silent and counted."""
    rows = [row for row in episodes.to_pylist() if row["error"] is None and row["n_steps"] > 0]
    rewards = [float(row["solved"]) if reward == "solved" else float(row["score"]) for row in rows]
    groups = [row["group_id"] for row in rows]
    advantages, silent = ESTIMATORS[credit](rewards, groups, [row["n_steps"] for row in rows])
    ids = [row["episode_id"] for row in rows]
    sequences = sequences_of(steps, dict(zip(ids, advantages, strict=True)), ids)
    for one, quiet in zip(sequences, silent, strict=True):
        one.silent = bool(quiet)
    quiet_groups = {group for group, quiet in zip(groups, silent, strict=True) if quiet}
    return Credited(sequences, len(set(groups)), len(quiet_groups))


def minibatches(sequences: list[Sequence], steps: int) -> list[list[Sequence]]:
    """The iteration's sequences dealt into `steps` batches, one for each optimiser step, in their order."""
    return [sequences[start::steps] for start in range(steps) if sequences[start::steps]]


def learn(learner: ActorLearner, batch: Credited, *, steps: int, lr: float, reference: dict[str, np.ndarray] | None) -> dict[str, Any]:
    """`steps` optimiser steps on the iteration's episodes; returns metrics, the skipped steps and the agreement of the sampler's
    log-probs with the learner's before the first step."""
    if reference is not None:
        for one in batch.sequences:
            one.reference_logprobs = reference[one.episode_id]
    difference = agreement(learner, batch.sequences)
    updates = [learner.update(part, lr) for part in minibatches(batch.sequences, steps)]
    names = sorted({name for update in updates for name in update.metrics})
    means = {name: _mean([update.metrics.get(name, 0.0) for update in updates]) for name in names}
    return {**means, **difference, "skipped_steps": sum(update.skipped for update in updates)}


def _mean(values: list[float]) -> float:
    """Of the finite ones: a skipped step is counted, its infinities must not hide the others' means (nor enter a JSON file)."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else 0.0


def agreement(learner: ActorLearner, sequences: list[Sequence], most: int = 8) -> dict[str, float]:
    """Largest and mean |log-prob of the sampler − of the learner| over the reply tokens of the first `most` sequences."""
    sample = sequences[:most]
    found = learner.logprobs(sample)
    gaps = [np.abs(found[one.episode_id] - one.old_logprobs)[one.role == REPLY] for one in sample]
    flat = np.concatenate(gaps) if gaps else np.zeros(1)
    return {"logprob_max_diff": float(flat.max(initial=0.0)), "logprob_mean_diff": float(flat.mean()) if len(flat) else 0.0}
