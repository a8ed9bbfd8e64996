"""What the step-level estimators share: discounted returns, and comparison among steps that are alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from ratchet.credit.batch import Batch
from ratchet.credit.grpo import group_advantage

Place = tuple[int, int]
"""(episode, step)."""


def discounted(rewards: Sequence[float] | np.ndarray, gamma: float) -> np.ndarray:
    """Return-to-go Σ_{u ≥ t} γ^(u−t) r_u; rewards [T] → float64 [T]."""
    values = np.array(rewards, np.float64)
    for t in range(len(values) - 2, -1, -1):
        values[t] += gamma * values[t + 1]
    return values


def compared(keys: Iterable[tuple[Hashable, Place]], returns: Sequence[np.ndarray], *, ddof: int) -> dict[Place, float]:
    """Normalised return of each step among those with its key; a step that is alone with it is left out."""
    alike: dict[Hashable, list[Place]] = {}
    for key, place in keys:
        alike.setdefault(key, []).append(place)
    found: dict[Place, float] = {}
    for places in alike.values():
        if len(places) > 1:
            values = group_advantage([returns[episode][t] for episode, t in places], ddof=ddof)
            found |= dict(zip(places, values.tolist(), strict=True))
    return found


def silent_where_zero(batch: Batch, advantages: Sequence[np.ndarray]) -> np.ndarray:
    """Episodes of groups in which no step has any advantage; bool [N]."""
    silent = np.zeros(len(batch.rewards), bool)
    for indices in batch.members():
        silent[indices] = not any(advantages[index].any() for index in indices)
    return silent
