"""Trains the head form: cross-entropy of completion and a smooth distance of log(1 + remaining), all questions of an episode in one pass."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ratchet.meter.answer import Grammar
from ratchet.meter.fit import Example, Progress, Sft, _silent, class_weights
from ratchet.meter.head import Head, width_of
from ratchet.meter.passes import Ask, Pass, Trunk, packed
from ratchet.meter.read import Reading


def fit_head(
    model: Any, grammar: Grammar, readings: Seq[Reading], examples: Seq[Example], own: Sft, *, batch_tokens: int, progress: Progress = _silent
) -> tuple[Head, list[dict[str, float]]]:
    """(head, curve); trains `model` along. With `own.balance` classes weigh the same."""
    from ratchet.learners.optimizers import schedule

    head = Head(width_of(model)).to(next(model.parameters()).device)
    if not examples or not own.epochs:
        return head, []
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=own.lr, weight_decay=0.0, betas=(0.9, 0.95))
    weight = class_weights(examples, own.balance)
    by_episode: dict[int, list[Example]] = {}
    for one in sorted(examples, key=lambda one: (one.episode, one.point)):
        by_episode.setdefault(one.episode, []).append(one)
    episodes = list(by_episode.items())
    each = max(1, round(own.batch * len(episodes) / len(examples)))
    total = -(-len(episodes) // each) * own.epochs
    curve: list[dict[str, float]] = []
    done = 0
    model.train()
    for epoch in range(own.epochs):
        order = np.random.default_rng([own.seed, epoch]).permutation(len(episodes))
        for start in range(0, len(order), each):
            batch = [episodes[index] for index in order[start : start + each]]
            for group in optimizer.param_groups:
                group["lr"] = own.lr * schedule(done / total, 0.05, 0.0)
            loss = _step(model, head, grammar, readings, batch, weight, batch_tokens)
            torch.nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            if done % max(1, total // 20) == 0 or done == total:
                curve.append({"step": done, "loss": loss})
                progress(done, total, curve[-1])
    model.eval()
    return head, curve


def _step(
    model: Any, head: Head, grammar: Grammar, readings: Seq[Reading], batch: Seq[tuple[int, list[Example]]], weight: list[float], budget: int
) -> float:
    """Gradients of the weighted mean over the batch's questions; its value."""
    trunks = [Trunk(readings[number].ids, tuple(Ask(one.point) for one in some)) for number, some in batch]
    mass = sum(weight[one.value is not None] for _, some in batch for one in some) or 1.0
    value = 0.0
    for group in packed(trunks, budget, len(grammar.question)):
        one = Pass.of(model, [trunks[index] for index in group], grammar.question, keep=False)
        device = one.hidden.device
        logit, size = head(one.hidden[torch.from_numpy(one.ends).to(device)])
        labels = [example.value for index in group for example in batch[index][1]]
        able = torch.tensor([label is not None for label in labels], device=device)
        each = torch.tensor([weight[label is not None] for label in labels], device=device)
        target = torch.tensor([0.0 if label is None else np.log1p(label) for label in labels], device=device)
        terms = F.binary_cross_entropy_with_logits(logit, able.float(), reduction="none")
        terms = terms + F.smooth_l1_loss(size, target, reduction="none") * able
        loss = (terms * each).sum() / mass
        loss.backward()
        value += float(loss.detach())
    return value
