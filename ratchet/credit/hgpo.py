"""HGPO (methods §2; arXiv 2602.22817): each step against those with the same recent history, for histories of several lengths.

A longer common history makes steps more alike and their number smaller; the weights trade the bias of the one against the variance of
the other.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ratchet.credit.batch import Batch, Credit
from ratchet.credit.returns import compared, discounted, silent_where_zero
from ratchet.settings_online import Hgpo

ZERO = 1e-9  # what is left of a zero advantage after float64 arithmetic


def hgpo(batch: Batch, options: Hgpo) -> Credit:
    """A = Σ_k w_k A_k over k = 1 … K+1, w_k ∝ (k+1)^α, of those k whose A_k is not zero.

    A_k is the return-to-go normalised (population std) among the steps of the group whose last k observations are the same; a step that
    is alone, or has not k observations yet, has no A_k. There is no term of the whole episode, as in the authors' code.
    """
    returns = [discounted(rewards, options.gamma) for rewards in batch.step_rewards]
    advantages = [np.zeros(steps) for steps in batch.n_steps]
    for indices in batch.members():
        if len(indices) < 2:
            continue
        weighted: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
        for k in range(1, options.k + 2):
            keys = (
                (tuple(seen[t - k + 1 : t + 1]), (episode, t))
                for episode in indices
                for seen in (batch.observations[episode],)
                for t in range(k - 1, len(seen))
            )
            for place, value in compared(keys, returns, ddof=0).items():
                if abs(value) > ZERO:
                    weighted[place].append(((k + 1.0) ** options.alpha, value))
        for (episode, t), found in weighted.items():
            advantages[episode][t] = sum(weight * value for weight, value in found) / sum(weight for weight, _ in found)
    return Credit([values.astype(np.float32) for values in advantages], silent_where_zero(batch, advantages))
