"""Low-rank updates of a backbone's matrices (Hu et al. 2021): what is learned is B·A beside weights that stay.

As a parametrisation of `weight`, so every pass that reads a layer's weight (ratchet/models/fused.py too) sees the sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class LowRank(nn.Module):
    """W → W + scale · B·A, with A [r, in] from `generator` and B [out, r] zero, so that nothing differs at the start."""

    def __init__(self, weight: Tensor, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        out, inner = weight.shape
        self.a = nn.Parameter((torch.randn(rank, inner, generator=generator) / inner**0.5).to(weight))
        self.b = nn.Parameter(weight.new_zeros(out, rank))
        self.scale = alpha / rank

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.b @ self.a)


def add_low_rank(model: Any, rank: int, alpha: float, seed: int) -> int:
    """Freezes a causal LM and gives each linear layer but the head a low-rank update; returns the number of parameters that are learned."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    generator, learned = torch.Generator().manual_seed(seed), 0
    for module in [module for _, module in sorted(model.named_modules(), key=lambda one: one[0])]:
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
            update = LowRank(module.weight, rank, alpha, generator)
            parametrize.register_parametrization(module, "weight", update)
            learned += update.a.numel() + update.b.numel()
    return learned


def merge(model: Any) -> None:
    """Lays the updates into the weights: the model is a plain one again."""
    for module in model.modules():
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
