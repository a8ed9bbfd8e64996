"""Optimisers: AdamW, or Muon for the matrices inside the layers and AdamW for the rest."""

from __future__ import annotations

from typing import Any, Literal

import torch

BETAS = (0.9, 0.95)


def make_optimizers(model: Any, kind: Literal["muon", "adamw"], weight_decay: float = 0.0) -> list[torch.optim.Optimizer]:
    """Learning rates are set before each step (`set_lr`), so none is given here.

    Muon's updates are scaled to the root mean square of AdamW's, so that one learning rate serves both.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if kind == "adamw":
        return [torch.optim.AdamW([p for _, p in named], lr=0.0, betas=BETAS, weight_decay=weight_decay, fused=True)]
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    ours = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in ours]
    return [
        torch.optim.Muon(matrices, lr=0.0, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
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
