"""Warm start: likelihood of demonstrations, by our learner, resumable to the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.errors import RatchetError
from ratchet.files import sha256_json
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import Sequence
from ratchet.learners.checkpoint import load_checkpoint, rng_seed, save_checkpoint
from ratchet.learners.optimizers import schedule
from ratchet.learners.safety import check_skipped
from ratchet.losses.likelihood import Likelihood
from ratchet.losses.observation import ObservationLikelihood


@dataclass(frozen=True)
class ImitationSettings:
    """`tokens` is the whole budget, all tokens of the sequences counted; `batch_tokens` those of one step."""

    tokens: int
    batch_tokens: int
    lr: float
    optimizer: str
    observation_weight: float
    warmup_share: float
    floor: float
    max_grad_norm: float
    seed: int
    autocast: str = "none"
    max_grad_norm_ratio: float = 1e4
    max_skipped_share: float = 1.0
    checkpoint_every: int = 200
    log_every: int = 20


@dataclass
class ImitationResult:
    curve: list[dict[str, float | None]] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    held_out_loss: float | None = None


def batches(sequences: Seq[Sequence], budget: int, seed: int) -> Iterator[list[Sequence]]:
    """Endless batches of about `budget` tokens: every epoch a new permutation keyed by (seed, epoch)."""
    epoch = 0
    pending: list[Sequence] = []
    size = 0
    while True:
        for index in np.random.default_rng(rng_seed(seed, epoch)).permutation(len(sequences)):
            one = sequences[index]
            if pending and size + len(one.ids) > budget:
                yield pending
                pending, size = [], 0
            pending.append(one)
            size += len(one.ids)
        epoch += 1


def imitate(
    model: Any,
    train: Seq[Sequence],
    held_out: Seq[Sequence],
    settings: ImitationSettings,
    *,
    scratch: Path,
    progress: Callable[[int, int, dict[str, Any]], None] = lambda done, total, point: None,
) -> tuple[Any, ImitationResult]:
    """Trains `model` on `train` until the token budget is spent; returns it and the curve (`held_out_loss` = mean −log p of
    reply tokens on `held_out`). Interrupted, it goes on from the last checkpoint in `scratch`.

    Raises RatchetError where more than `max_skipped_share` of the steps had to be skipped."""
    if not train:
        raise RatchetError("warm_start: no demonstration is left to train on; raise demonstrate.episodes or env.max_tokens")
    terms = [Likelihood(), ObservationLikelihood(settings.observation_weight)]
    learner = ActorLearner(
        model,
        terms,
        optimizer=settings.optimizer,
        batch_tokens=settings.batch_tokens,
        max_grad_norm=settings.max_grad_norm,
        autocast=settings.autocast,
        max_grad_norm_ratio=settings.max_grad_norm_ratio,
    )
    result = ImitationResult()
    configuration = sha256_json([scratch.name, asdict(settings)])[:16]
    done = load_checkpoint(scratch / "checkpoint", learner.model, learner.optimizers, configuration=configuration)
    if done is not None:
        result = ImitationResult(**done)
    at, planned = result.steps, -(-settings.tokens // settings.batch_tokens)
    for index, batch in enumerate(batches(train, settings.batch_tokens, settings.seed)):
        if result.tokens >= settings.tokens:
            break
        if index < at:
            continue
        share = result.tokens / settings.tokens
        update = learner.update(batch, settings.lr * schedule(share, settings.warmup_share, settings.floor))
        result.steps += 1
        result.tokens += sum(len(one.ids) for one in batch)
        result.skipped_steps += update.skipped
        check_skipped(result.skipped_steps, max(planned, result.steps), settings.max_skipped_share, "warm_start")
        # A skipped step's infinities are no point of a curve (nor of a JSON file); it is counted.
        if not update.skipped and (result.steps % settings.log_every == 0 or result.tokens >= settings.tokens):
            point = {
                "tokens": result.tokens,
                "loss": update.metrics["likelihood"],
                "observation_loss": update.metrics.get("observation"),
                "held_out_loss": None,
                "grad_norm": update.metrics["grad_norm"],
            }
            result.curve.append(point)
            progress(result.tokens, settings.tokens, point)
        if result.steps % settings.checkpoint_every == 0:
            if result.curve:
                result.curve[-1]["held_out_loss"] = held_out_loss(learner, held_out)
            save_checkpoint(scratch / "checkpoint", learner.model, learner.optimizers, vars(result), configuration=configuration)
    result.held_out_loss = held_out_loss(learner, held_out)
    if result.curve:
        result.curve[-1]["held_out_loss"] = result.held_out_loss
    return learner.model, result


def held_out_loss(learner: ActorLearner, sequences: Seq[Sequence]) -> float | None:
    """Mean −log p of the reply tokens, nats."""
    if not sequences:
        return None
    total = sum(float(values.sum()) for values in learner.logprobs(sequences).values())
    return -total / sum(one.n_reply for one in sequences)


