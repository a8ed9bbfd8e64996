"""Likelihood of what was written: of demonstrations, and of one's own successes."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from ratchet.learners.batches import REPLY, Micro, Sequence


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


class SuccessLikelihood:
    """Success-filtered SFT (methods §4): −mean log p over the replies' tokens of the episodes that were solved, silent ones included.

    An episode's weight is in the numerator only; the denominator counts tokens, or a weight would cancel where an episode is alone.
    """

    name = "success_sft"
    roles = frozenset({REPLY})

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def wants(self, one: Sequence) -> bool:
        return one.solved

    def denominator(self, batch: Seq[Sequence]) -> float:
        return float(sum(one.n_reply for one in batch if one.solved))

    def numerator(self, logp: Tensor, micro: Micro) -> tuple[Tensor, dict[str, Tensor]]:
        mine = (micro.role == REPLY) & micro.solved
        return -(logp[mine] * micro.weight[mine]).sum(), {}
