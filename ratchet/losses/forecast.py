"""Likelihood of the policy's own coming actions (methods §4, CoPE): the forecast term."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from ratchet.learners.batches import FORECAST, Micro, Sequence


class Forecast:
    """L_AF: Σ over targets of weight · ℓ, over the number of all groups; ℓ = −log p of a target's tokens.

    What the formula has before ℓ (one over the group's successes, over the episode's prefixes, over the target's tokens) is the
    branch's own weight (learners/forecast.py), so it stands in the numerator alone. The denominator counts every group, those
    without a success too, each optimiser step's share of them.
    """

    name = "forecast"
    roles = frozenset({FORECAST})

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def wants(self, one: Sequence) -> bool:
        return bool(one.branches)

    def denominator(self, batch: Seq[Sequence]) -> float:
        return float(sum(one.group_share for one in batch))

    def numerator(self, logp: Tensor, micro: Micro) -> tuple[Tensor, dict[str, Tensor]]:
        mine = micro.role == FORECAST
        nats = -logp[mine]
        sums = {"forecast_nats": nats.detach().sum(), "forecast_tokens": mine.sum().float()}  # a group, whatever the weights
        return (nats * micro.weight[mine]).sum(), sums
