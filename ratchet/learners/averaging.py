"""A moving average of the weights over an online round's iterations.

A few optimiser steps on a few hundred episodes leave much noise in the weights; the average over the way there has less of it
(Izmailov et al. 2018, arXiv 1803.05407; for policies Nikishin et al. 2018). The actor that plays and learns is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class WeightAverage:
    """`update` after each iteration: average ← keep · average + (1 − keep) · weights; it begins with the weights at the start.

    With `keep` = 0 it is the weights themselves.
    """

    def __init__(self, model: Any, keep: float) -> None:
        self.keep = keep
        self.weights: dict[str, Tensor] = {name: one.detach().clone() for name, one in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: Any) -> None:
        for name, one in model.named_parameters():
            self.weights[name].lerp_(one, 1 - self.keep)

    @contextmanager
    def laid_into(self, model: Any) -> Iterator[None]:
        """For its time the model holds the average."""
        own = {name: one.detach().clone() for name, one in model.named_parameters()}
        _lay(model, self.weights)
        try:
            yield
        finally:
            _lay(model, own)


@torch.no_grad()
def _lay(model: Any, weights: dict[str, Tensor]) -> None:
    for name, one in model.named_parameters():
        one.copy_(weights[name])
