"""Likelihood of what was written (imitation) and of what was read (observation tokens)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from ratchet.learners.batches import OBSERVATION, REPLY, Micro, Sequence


class Likelihood:
    """−mean log p over the replies' tokens, end-of-turn included."""

    name = "likelihood"
    roles = frozenset({REPLY})

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    def wants(self, one: Sequence) -> bool:
        return True

    def denominator(self, batch: Seq[Sequence]) -> float:
        return float(sum(one.n_reply for one in batch))

    def numerator(self, logp: Tensor, micro: Micro) -> tuple[Tensor, dict[str, Tensor]]:
        return -logp[micro.role == REPLY].sum(), {}


class ObservationLikelihood:
    """−mean log p over observation tokens after the first action (ECHO's term, methods §4; in a warm start its weight is
    `observation_weight`). Same forward pass, own denominator."""

    name = "observation"
    roles = frozenset({OBSERVATION})

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def wants(self, one: Sequence) -> bool:
        return one.n_observation > 0

    def denominator(self, batch: Seq[Sequence]) -> float:
        return float(sum(one.n_observation for one in batch))

    def numerator(self, logp: Tensor, micro: Micro) -> tuple[Tensor, dict[str, Tensor]]:
        return -logp[micro.role == OBSERVATION].sum(), {}
