"""The clipped surrogate (methods §2), with asymmetric and dual clip, at three ratio levels."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Literal

import torch
from torch import Tensor

from ratchet.learners.batches import REPLY, Micro, Sequence

RatioLevel = Literal["token", "step_sum", "step_mean"]


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """Loss of each token, methods §2.

    `log_ratio`, `advantage` [M] → [M]. r = exp(log_ratio); L = max(−r·A, −clip(r, 1−low, 1+high)·A); with `dual` = d,
    where A < 0: min(L, −d·A).
    """
    ratio = log_ratio.exp()
    loss = torch.maximum(-ratio * advantage, -ratio.clamp(1 - low, 1 + high) * advantage)
    if dual is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)
    return loss


def level_log_ratio(log_ratio: Tensor, step: Tensor, level: RatioLevel) -> Tensor:
    """Per token the log-ratio of its level: its own, its step's sum, or its step's mean. [M] → [M]."""
    if level == "token":
        return log_ratio
    steps = int(step.max()) + 1 if len(step) else 0
    total = log_ratio.new_zeros(steps).index_add(0, step, log_ratio)
    if level == "step_mean":
        total = total / torch.bincount(step, minlength=steps).clamp(min=1)
    return total[step]


def step_tokens(step: Tensor) -> Tensor:
    """Per token the number of tokens of its step. int64 [M] → int64 [M]."""
    return torch.bincount(step)[step] if len(step) else step


class ClippedSurrogate:
    """The policy-gradient term. `mean: token` divides by all action tokens; `episode` takes each episode's token mean first.

    At the level `step_sum` the ratio is that of a whole action, whose loss then counts once, shared among its tokens; with ratios of 1 all
    levels have the same gradient. Silent episodes count in the denominator and give no gradient.
    """

    name = "policy"
    roles = frozenset({REPLY})

    def __init__(
        self,
        *,
        low: float,
        high: float,
        dual: float | None = None,
        mean: Literal["token", "episode"] = "token",
        level: RatioLevel = "token",
        weight: float = 1.0,
    ) -> None:
        self.low, self.high, self.dual, self.mean, self.level, self.weight = low, high, dual, mean, level, weight

    def wants(self, one: Sequence) -> bool:
        return not one.silent

    def denominator(self, batch: Seq[Sequence]) -> float:
        return float(sum(one.n_reply for one in batch)) if self.mean == "token" else float(len(batch))

    def numerator(self, logp: Tensor, micro: Micro) -> tuple[Tensor, dict[str, Tensor]]:
        mine = (micro.role == REPLY) & ~micro.silent
        advantage, tokens = micro.advantage[mine], micro.episode_tokens[mine]
        log_ratio = level_log_ratio(logp[mine] - micro.old_logprob[mine], micro.step[mine], self.level)
        loss = clipped_surrogate(log_ratio, advantage, self.low, self.high, self.dual)
        share = 1 / tokens if self.mean == "episode" else torch.ones_like(tokens)
        if self.level == "step_sum":
            loss = loss / step_tokens(micro.step[mine])
        ratio = log_ratio.detach().exp()
        clipped = torch.where(advantage > 0, ratio > 1 + self.high, (ratio < 1 - self.low) & (advantage < 0))
        metrics = {
            "clip_fraction": (clipped * share).sum(),
            "ratio_deviation": ((ratio - 1) * share).sum(),
            "kl": ((ratio - 1 - log_ratio.detach()) * share).sum(),  # k3 of the old policy against the new
        }
        return (loss * share).sum(), metrics
