"""Who generates tokens. An engine holds one running episode a slot and reads only what is new to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Generated:
    """One reply as generated: ids with the end-of-turn (unless cut), log-probs and entropies of the sampled distribution."""

    ids: list[int]
    logprobs: list[float]
    entropy: list[float]


class Engine(Protocol):
    """Generates replies for the episodes in its slots."""

    slots: int

    def twin(self) -> Engine:
        """Another one of the same weights with slots of its own."""
        ...

    def reset(self) -> None:
        """Frees all slots, and lets go of everything that earlier episodes left: from here on results are those of a new engine."""
        ...

    def clear(self, slots: Sequence[int]) -> None:
        """Frees slots: the next reply there begins a new episode."""
        ...

    def reply(
        self,
        slots: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        keys: np.ndarray,
        limits: Sequence[int],
        temperature: float,
    ) -> list[Generated]:
        """Reads `new_ids` behind what each slot holds and samples a reply of at most `limits` tokens there.

        `keys` [b] uint64 keys the noise of each episode; temperature 0 is greedy. What is generated stays in the slot.
        """
        ...
