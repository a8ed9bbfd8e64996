"""Muon, with the matrices of one shape orthogonalised together.

A small model has many small matrices: one after another their products are mostly overhead (a fifth of a 1M model's update). Source: K. Jordan
and others, Muon (2024); learning rates are scaled to the root mean square of AdamW's (Liu and others 2025, Moonlight, eq. 4).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

RMS = 0.2  # of an update's entries, as AdamW's


def orthogonalized(stack: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """[n, r, c] → [n, r, c], each near the closest (semi-)orthogonal matrix: singular values in about 0.7 to 1.2, by a quintic
    Newton–Schulz iteration."""
    a, b, c = coefficients
    tall = stack.shape[1] > stack.shape[2]
    x = stack.transpose(1, 2) if tall else stack
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Muon):
    """torch's Muon with `adjust_lr_fn="match_rms_adamw"` and Nesterov momentum, shape by shape; its state is the same.

    The iteration runs in `precision`: bfloat16 pays where the processor multiplies it, float32 is right everywhere.
    """

    def __init__(self, params: Any, *, precision: torch.dtype = torch.float32, **options: Any) -> None:
        super().__init__(params, adjust_lr_fn="match_rms_adamw", nesterov=True, **options)
        self.precision = precision

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[tuple[torch.Size, torch.device], list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike[parameter.shape, parameter.device].append(parameter)
            for (shape, _), parameters in alike.items():
                updates = orthogonalized(self._momentum(parameters, group), group["ns_coefficients"], group["ns_steps"], group["eps"])
                rate = group["lr"] * RMS * max(shape) ** 0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, list(updates.to(parameters[0].dtype)), alpha=-rate)

    def _momentum(self, parameters: list[Tensor], group: dict[str, Any]) -> Tensor:
        """Nesterov's look-ahead gradients [n, r, c] in the iteration's precision; moves the buffers on."""
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters]
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        return torch.stack(torch._foreach_lerp(gradients, buffers, group["momentum"])).to(self.precision)
