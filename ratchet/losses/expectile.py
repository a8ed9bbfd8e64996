"""Weighted implicit Q-learning (methods §5; Kostrikov et al. 2021): V as an expectile of Q over the buffer's actions, Q by one step.

Legend: S steps, those of whole episodes · H heads of Q.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def expectile_loss(difference: Tensor, tau: float) -> Tensor:
    """|τ − 1(δ < 0)|·δ², elementwise; at τ = .5 half the squared error."""
    return torch.where(difference < 0, 1 - tau, tau) * difference.square()


def iql_weights(steps: int, success: bool, *, time: bool = True, outcome: bool = True) -> Tensor:
    """w_t = 0.5·(t/T + d) + 0.5 of an episode's T steps, float32 [T]; d = 1 where the environment's return is above 0.

    `time` and `outcome` leave a term out; without both it is plain IQL, w = 1.
    """
    if not time and not outcome:
        return torch.ones(steps)
    passed = torch.arange(steps) / steps if time else torch.zeros(steps)
    return 0.5 * (passed + float(outcome and success)) + 0.5


class Losses(NamedTuple):
    """Sums over steps; divided by their number they are L_V and L_Q. `td` [S]: squared errors of Q, unweighted, mean over heads."""

    value: Tensor
    q: Tensor
    td: Tensor


def iql_losses(
    value: Tensor, q: Tensor, target: Tensor, reward: Tensor, following: Tensor, bootstrap: Tensor, weight: Tensor, *, gamma: float, tau: float
) -> Losses:
    """L_V and L_Q as sums over S steps.

    `value` [S], `q` [S, H]; `target` [S]: Q of the target heads, without a gradient, the smaller one of two. `reward` [S]: the
    environment's and the retrospective one. `following` [S] int64: the row of the episode's next step, −1 at its last one, where
    `bootstrap` [S] stands for V of what follows (0 where the environment ended it). `weight` [S].
    """
    fixed = value.detach()
    ahead = torch.where(following >= 0, fixed[following.clamp(min=0)], bootstrap)
    wanted = reward + gamma * ahead
    errors = (wanted[:, None] - q).square()
    return Losses(
        value=(weight * expectile_loss(target.detach() - value, tau)).sum(),
        q=(weight[:, None] * errors).sum(),
        td=errors.detach().mean(1),
    )
