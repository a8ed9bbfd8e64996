"""Optimisers: AdamW, or Muon for the matrices inside the layers and AdamW for the rest."""

from __future__ import annotations

from typing import Any, Literal

import torch

from ratchet.learners.muon import Muon

BETAS = (0.9, 0.95)


def make_optimizers(
    model: Any, kind: Literal["muon", "adamw"], weight_decay: float = 0.0, precision: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """Learning rates are set before each step (`set_lr`), so none is given here.

    Muon's updates are scaled to the root mean square of AdamW's, so that one learning rate serves both. It takes the matrices of
    linear layers; embeddings and the head, whatever they are called, are AdamW's. Its iteration runs in `precision`.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if kind == "adamw":
        return [torch.optim.AdamW([p for _, p in named], lr=0.0, betas=BETAS, weight_decay=weight_decay, fused=True)]
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    vocabulary = {id(p) for module in [*tables, model.get_output_embeddings()] for p in module.parameters()}
    matrices = [p for _, p in named if p.ndim == 2 and id(p) not in vocabulary]
    ours = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in ours]
    return [
        Muon(matrices, lr=0.0, weight_decay=weight_decay, precision=precision),
        torch.optim.AdamW(rest, lr=0.0, betas=BETAS, weight_decay=weight_decay, fused=True),
    ]


def set_lr(optimizers: list[Any], lr: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr


def schedule(share: float, warmup: float, floor: float = 0.0) -> float:
    """Factor on the learning rate at `share` ∈ [0, 1] of the training: linear up over `warmup`, then linear down to `floor`."""
    if share < warmup:
        return share / warmup
    return floor + (1 - floor) * (1 - share) / max(1 - warmup, 1e-9)
