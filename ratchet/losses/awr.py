"""Advantage-weighted regression (Peng et al. 2019), in place of the clipped surrogate (methods §5)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from torch import Tensor

from ratchet.learners.batches import REPLY, Micro, Sequence

TINY = 1e-30  # a ratio of 0 has no logarithm


def awr_weights(advantage: Tensor, temperature: float = 1.0, clip: float = 20.0) -> Tensor:
    """min(exp(A / temperature), clip), elementwise."""
    return (advantage / temperature).exp().clamp(max=clip)


def scaled(advantage: np.ndarray, ratio: np.ndarray, temperature: float = 1.0, clip: float = 20.0) -> np.ndarray:
    """The advantage whose weight is `ratio` ≤ 1 times that of `advantage`: float64 [T]. For steps of another policy, whose ratio scales the
    weight and not what stands in the exponent."""
    return temperature * (np.log(np.maximum(ratio, TINY)) + np.minimum(advantage / temperature, np.log(clip)))


class AdvantageWeighted:
    """−mean over the replies' tokens of weight · log p. The weights stand in the numerator alone; silent episodes give no gradient."""

    name = "policy"
    roles = frozenset({REPLY})

    def __init__(self, *, temperature: float = 1.0, clip: float = 20.0, weight: float = 1.0) -> None:
        self.temperature, self.clip, self.weight = temperature, clip, weight

    def wants(self, one: Sequence) -> bool:
        return not one.silent

    def denominator(self, batch: Seq[Sequence]) -> float:
        return float(sum(one.n_reply for one in batch))

    def numerator(self, logp: Tensor, micro: Micro) -> tuple[Tensor, dict[str, Tensor]]:
        mine = (micro.role == REPLY) & ~micro.silent
        weights = awr_weights(micro.advantage[mine], self.temperature, self.clip)
        return -(weights * logp[mine]).sum(), {"awr_weight": weights.sum(), "awr_clipped": (weights >= self.clip).float().sum()}
