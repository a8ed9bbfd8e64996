"""GRPO's outcome advantage (methods §2): an episode's reward against its group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.credit.batch import Batch, Credit, per_step

EPSILON = 1e-6


def group_advantage(rewards: Sequence[float] | np.ndarray, *, ddof: int = 0, epsilon: float = EPSILON) -> np.ndarray:
    """A_i = (R_i − mean) / (std + 1e-6) with the population's std (`ddof` 1: the sample's); rewards [G] → float64 [G].

    A group without spread, or of one episode, gives exactly 0.
    """
    values = np.asarray(rewards, np.float64)
    if len(values) < 2 or np.all(values == values[0]):
        return np.zeros(len(values))
    return (values - values.mean()) / (values.std(ddof=ddof) + epsilon)


def by_group(batch: Batch, rewards: Sequence[float] | np.ndarray) -> np.ndarray:
    """`group_advantage` of each group; rewards [N] → float64 [N]."""
    values, advantage = np.asarray(rewards, np.float64), np.zeros(len(rewards))
    for indices in batch.members():
        advantage[indices] = group_advantage(values[indices])
    return advantage


def grpo(batch: Batch, options: None = None) -> Credit:
    """One advantage for all steps of an episode; silent are the episodes of groups without spread."""
    return Credit(per_step(by_group(batch, batch.rewards), batch.n_steps), silent_groups(batch))


def silent_groups(batch: Batch) -> np.ndarray:
    """Episodes of groups of one, and of groups whose rewards are all the same; bool [N]."""
    silent = np.zeros(len(batch.rewards), bool)
    for indices in batch.members():
        silent[indices] = len({batch.rewards[index] for index in indices}) < 2
    return silent
