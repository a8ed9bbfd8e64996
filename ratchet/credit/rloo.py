"""RLOO (methods §2; arXiv 2402.14740): an episode's reward against the mean of the others of its group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.credit.batch import Batch, Credit, per_step
from ratchet.credit.grpo import silent_groups


def leave_one_out(rewards: Sequence[float] | np.ndarray) -> np.ndarray:
    """A_i = R_i − mean of the other rewards; rewards [G] → float64 [G]. A group without spread, or of one episode, gives exactly 0."""
    values = np.asarray(rewards, np.float64)
    if len(values) < 2 or np.all(values == values[0]):
        return np.zeros(len(values))
    return values - (values.sum() - values) / (len(values) - 1)


def rloo(batch: Batch, options: None = None) -> Credit:
    """One advantage for all steps of an episode, not scaled by the group's spread; silent are the episodes of groups without any."""
    rewards, advantage = np.asarray(batch.rewards, np.float64), np.zeros(len(batch.rewards))
    for indices in batch.members():
        advantage[indices] = leave_one_out(rewards[indices])
    return Credit(per_step(advantage, batch.n_steps), silent_groups(batch))
