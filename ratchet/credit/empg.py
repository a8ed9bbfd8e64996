"""EMPG (methods §2; arXiv 2509.09265): steps that the policy was sure of count more, and so do those that lead to sure ones.

The entropies are those that sampling wrote down, so they cost no pass.
"""

from __future__ import annotations

import numpy as np

from ratchet.credit.batch import Batch, Credit
from ratchet.credit.grpo import by_group, silent_groups
from ratchet.errors import RatchetError
from ratchet.settings_online import Empg


def modulated(advantage: list[np.ndarray], entropy: list[np.ndarray], options: Empg) -> list[np.ndarray]:
    """A' = A·g(H_t) + ζ·f(H_{t+1}), then less its mean over all steps; lists of float64 [T_i], the entropies mean nats a token.

    H is scaled to [0, 1] over all steps, g = exp(−k·H) / its mean, f = exp(−k'·H); the last step of an episode has no next one, and no f.
    A step without a token (NaN) has no entropy: it is out of every mean, and its advantage is 0.
    """
    known = [~np.isnan(values) for values in entropy]
    flat = np.concatenate([values[there] for values, there in zip(entropy, known, strict=True)])
    if not len(flat):
        return [np.zeros(len(values)) for values in advantage]
    low, width = flat.min(), flat.max() - flat.min()
    scaled = [(values - low) / width if width > 0 else values * 0.0 for values in entropy]
    mean = np.exp(-options.k * np.concatenate([values[there] for values, there in zip(scaled, known, strict=True)])).mean()
    found = []
    for values, h in zip(advantage, scaled, strict=True):
        ahead = np.append(np.nan_to_num(np.exp(-options.k_next * h[1:])), 0.0)
        found.append(values * np.exp(-options.k * h) / mean + options.zeta * ahead)
    centre = np.concatenate([values[there] for values, there in zip(found, known, strict=True)]).mean()
    return [np.where(there, values - centre, 0.0) for values, there in zip(found, known, strict=True)]


def empg(batch: Batch, options: Empg) -> Credit:
    """GRPO's advantage, modulated. The batch of its means are the episodes of groups with spread; the others stay silent, where
    centring would give them a direction that no outcome has [ours].

    Raises RatchetError where a reply has tokens but no entropies.
    """
    silent = silent_groups(batch)
    loud = [index for index in range(len(batch.rewards)) if not silent[index]]
    for index in loud:
        if batch.n_tokens[index] and np.isnan(batch.entropy[index]).all():
            raise RatchetError(
                "evolve_online.credit: empg needs the entropy of what is sampled, and the policy wrote none down; use an engine that gives "
                "entropies, or another estimator"
            )
    outcome = by_group(batch, batch.rewards)
    advantages = [np.zeros(steps) for steps in batch.n_steps]
    if loud:
        plain = [np.full(batch.n_steps[index], outcome[index]) for index in loud]
        for index, values in zip(loud, modulated(plain, [batch.entropy[index] for index in loud], options), strict=True):
            advantages[index] = values
    return Credit([values.astype(np.float32) for values in advantages], silent)
