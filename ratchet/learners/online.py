"""Online rounds: one iteration is rollouts, credit, and a few optimiser steps on them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.credit import ESTIMATORS
from ratchet.credit.batch import batch_of
from ratchet.credit.grpo import silent_groups
from ratchet.learners.actor import ActorLearner, Update
from ratchet.learners.batches import REPLY, Sequence, sequences_of
from ratchet.learners.safety import sampled_agreement, watching
from ratchet.learners.strata import Balance, strata_of, stratum_factors


@dataclass(frozen=True)
class Credited:
    """Sequences of one iteration with their advantages, and what the groups looked like."""

    sequences: list[Sequence]
    groups: int
    zero_variance_groups: int  # their outcomes are all the same, or they are of one episode
    group_ids: list[str]  # of each sequence
    strata: list[str]  # of each sequence, as `balance` means them

    @property
    def silent_share(self) -> float:
        """Share of the episodes from which the policy term learns nothing, 0 to 1."""
        return sum(one.silent for one in self.sequences) / max(len(self.sequences), 1)


def credited(
    episodes: pa.Table,
    steps: pa.Table,
    *,
    credit: str,
    reward: str,
    options: Any = None,
    max_length: int | None = None,
    balance: Balance = "none",
    only: Collection[str] | None = None,
) -> Credited:
    """Advantages for all episodes without error and with at least one step; a group that says nothing is silent and counted.

    `options` are the estimator's own; `max_length` are the tokens that an episode may have; `only` names the groups to learn from
    (default: all). `balance` weighs the successes of each stratum.
    """
    rows = [row for row in _learnable(episodes) if only is None or row["group_id"] in only]
    batch = batch_of(rows, steps, reward=reward, max_length=max_length)
    advantages, silent = ESTIMATORS[credit](batch, options)
    ids = [row["episode_id"] for row in rows]
    sequences = sequences_of(steps, dict(zip(ids, advantages, strict=True)), ids)
    for one, row, quiet in zip(sequences, rows, silent, strict=True):
        one.silent, one.solved = bool(quiet), bool(row["solved"])
    found = Credited(
        sequences,
        groups=len(set(batch.groups)),
        zero_variance_groups=len({group for group, quiet in zip(batch.groups, silent_groups(batch), strict=True) if quiet}),
        group_ids=list(batch.groups),
        strata=strata_of(rows, steps, balance),
    )
    if balance != "none":
        _weigh_successes(found)
    return found


def _weigh_successes(batch: Credited) -> None:
    factors = stratum_factors(batch.strata, batch.group_ids, [one.n_reply if one.solved else 0 for one in batch.sequences])
    for one, stratum in zip(batch.sequences, batch.strata, strict=True):
        one.weight = factors[stratum] if one.solved and stratum in factors else 1.0


def _learnable(episodes: pa.Table) -> list[dict[str, Any]]:
    return [row for row in episodes.to_pylist() if row["error"] is None and row["n_steps"] > 0]


def speaking_groups(episodes: pa.Table, *, reward: str) -> set[str]:
    """Groups whose episodes without error differ in reward."""
    found: dict[str, set[float]] = {}
    for row in _learnable(episodes):
        found.setdefault(row["group_id"], set()).add(float(row[reward]))
    return {group for group, rewards in found.items() if len(rewards) > 1}


def minibatches(sequences: list[Sequence], steps: int) -> list[list[Sequence]]:
    """The iteration's sequences dealt into `steps` batches, one for each optimiser step, in their order."""
    return [sequences[start::steps] for start in range(steps) if sequences[start::steps]]


def learn(
    learner: ActorLearner,
    batch: Credited,
    *,
    steps: int,
    lr: float,
    reference: dict[str, np.ndarray] | None,
    apart: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """`steps` optimiser steps on the iteration's episodes; returns metrics, the skipped steps and how far the sampler's log-probs are
    from the learner's before the first step. `reference` holds the log-probs, by episode, of the model that the KL term compares with; it
    may leave silent episodes out. `apart` names terms that take steps of their own, each behind the others' on the same episodes.

    Log-probs are compared on all replies that the first step learns from, in its own pass, which costs nothing. Where that pass computes
    in another precision than the sampler, or where no reply in it has a gradient, a few sequences get a pass of their own.
    """
    if reference is not None:
        for one in batch.sequences:
            one.reference_logprobs = reference.get(one.episode_id)
    apart &= {term.name for term in learner.terms}
    joint = [term for term in learner.terms if term.name not in apart]
    only = frozenset(term.name for term in joint) if apart else None
    first, *others = minibatches(batch.sequences, steps) or [[]]
    in_passing = learner.is_exact and any(REPLY in term.roles and term.wants(one) for one in first for term in joint)
    agreement = None if in_passing else sampled_agreement(learner, batch.sequences)
    with watching(learner) as watched:
        updates = [learner.update(first, lr, None if only is None else only | {watched.name})]
    behind = [learner.update(first, lr, apart)] if apart else []
    for part in others:
        updates.append(learner.update(part, lr, only))
        behind += [learner.update(part, lr, apart)] if apart else []
    means = _means(behind, {"grad_norm": "grad_norm_apart"}) | _means(updates, {})
    means.pop(watched.name, None)
    return {**means, **(agreement or watched).metrics(), "skipped_steps": sum(update.skipped for update in (*updates, *behind))}


def _means(updates: list[Update], renamed: dict[str, str]) -> dict[str, float]:
    """Of each metric over the updates, sorted by name."""
    names = sorted({name for update in updates for name in update.metrics})
    return {renamed.get(name, name): _mean([update.metrics.get(name, 0.0) for update in updates]) for name in names}


def _mean(values: list[float]) -> float:
    """Of the finite ones: a skipped step is counted, its infinities must not hide the others' means (nor enter a JSON file)."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else 0.0
