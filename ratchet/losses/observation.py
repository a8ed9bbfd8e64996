"""Likelihood of what was read (methods §4, ECHO): a policy that foresees its environment, learned in the pass that learns to act."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from ratchet.learners.batches import OBSERVATION, Micro, Sequence


class ObservationLikelihood:
    """−mean log p over observation tokens after the first action, of all episodes, silent ones included: the same forward pass, a
    denominator of its own. In online rounds its weight is `echo.weight`, in a warm start `observation_weight`."""

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
