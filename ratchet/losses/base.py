"""A term of the actor's loss.

The loss of an update is Σ weight · numerator / denominator. Each term has a denominator of its own, taken over the whole batch
before anything is computed, so no term can dilute another and the result does not depend on how the batch is cut up.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from torch import Tensor

from ratchet.learners.batches import Micro, Sequence


class Term(Protocol):
    name: str
    weight: float
    roles: frozenset[int]  # tokens that carry it

    def wants(self, one: Sequence) -> bool:
        """Whether the sequence can have a gradient of this term; one that no term wants gets no forward pass."""
        ...

    def denominator(self, batch: Seq[Sequence]) -> float:
        """Over all sequences of the batch, those that it does not want included."""
        ...

    def numerator(self, logp: Tensor, micro: Micro) -> tuple[Tensor, dict[str, Tensor]]:
        """Its sum over the micro-batch, and metrics as sums that the same denominator turns into means.

        `logp` [M]: log-probs of the loss tokens at the learner's temperature.
        """
        ...
