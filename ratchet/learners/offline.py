"""The offline update: the actor's learner on a fixed buffer (methods §5), and the gates that say whether it went too far. Resumable."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from ratchet.files import sha256_json
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import REPLY, Sequence, shuffled
from ratchet.learners.checkpoint import load_checkpoint, rng_seed, save_checkpoint
from ratchet.learners.optimizers import schedule
from ratchet.learners.safety import check_skipped, watching
from ratchet.losses.clipped_surrogate import RatioLevel, level_log_ratio
from ratchet.losses.kl import seen_kl
from ratchet.samples import effective_share

FLOOR = 0.1  # the learning rate ends at this share of its peak


@dataclass(frozen=True)
class OfflineSettings:
    """Those of `evolve_offline` (ratchet/settings_critic.py) that the loop needs."""

    epochs: int
    step_tokens: int
    lr: float
    warmup_share: float
    seed: int
    max_skipped_share: float = 1.0
    checkpoint_every: int = 20


@dataclass
class OfflineResult:
    curve: list[dict[str, float]] = field(default_factory=list)  # a point an optimiser step
    steps: int = 0
    skipped_steps: int = 0


def improve(
    learner: ActorLearner,
    sequences: Seq[Sequence],
    settings: OfflineSettings,
    *,
    scratch: Path,
    progress: Callable[[int, int, dict[str, float]], None] = lambda done, total, point: None,
) -> OfflineResult:
    """`epochs` passes over `sequences`, each in an order of its own keyed by (seed, epoch). Interrupted, it goes on from the last checkpoint.

    The first step tells how far its log-probs are from those of the round's start (`logprob_max_diff`): the same, up to the order of sums.
    Raises RatchetError where too many steps had to be skipped.
    """
    result = OfflineResult()
    configuration = sha256_json([scratch.name, asdict(settings)])[:16]
    where = scratch / "actor"
    done = load_checkpoint(where, learner.model, learner.optimizers, configuration=configuration)
    if done is not None:
        result = OfflineResult(**done)
    plan = [batch for epoch in range(settings.epochs) for batch in shuffled(sequences, settings.step_tokens, rng_seed(settings.seed, epoch))]
    for number in range(result.steps, len(plan)):
        lr = settings.lr * schedule((number + 0.5) / len(plan), settings.warmup_share, FLOOR)
        if number:
            update, told = learner.update(plan[number], lr), {}
        else:
            with watching(learner) as watched:
                update = learner.update(plan[number], lr)
            update.metrics.pop(watched.name, None)
            told = watched.metrics()
        result.steps, result.skipped_steps = number + 1, result.skipped_steps + update.skipped
        check_skipped(result.skipped_steps, len(plan), settings.max_skipped_share, "evolve_offline")
        if not update.skipped:
            point = {"step": number + 1, **update.metrics, **told}
            result.curve.append(point)
            progress(number + 1, len(plan), point)
        if (number + 1) % settings.checkpoint_every == 0 and number + 1 < len(plan):
            save_checkpoint(where, learner.model, learner.optimizers, vars(result), configuration=configuration)
    return result


def moved(learner: ActorLearner, sequences: Seq[Sequence], own: Container[str], level: RatioLevel) -> dict[str, float]:
    """How far the actor is from the round's start and from the reference, on the buffer's replies.

    `ess`: effective share of the ratios to the start, at the loss's level, over the episodes named in `own`, which the start itself played:
    at one token of an expert's that it took for impossible the ratio is hundreds, and the share next to nothing whatever else happened.
    Left out where there are none. `kl`: divergence from the reference, else from the start, nats a token, at the least (`seen_kl`): experts
    and greedy play wrote tokens too, for which k3 does not hold.
    """
    now = learner.logprobs(sequences)
    ratios, divergence, tokens = [], 0.0, 0
    for one in sequences:
        mine = one.role == REPLY
        logp, then = (torch.from_numpy(values[mine].astype(np.float64)) for values in (now[one.episode_id], one.old_logprobs))
        step = torch.from_numpy(one.step[mine].astype(np.int64))
        if one.episode_id in own:
            ratios.append(level_log_ratio(logp - then, step, level).exp().numpy())
        reference = one.old_logprobs if one.reference_logprobs is None else one.reference_logprobs
        divergence += float(seen_kl(logp, torch.from_numpy(reference[mine].astype(np.float64))).sum())
        tokens += int(mine.sum())
    told = {"kl": divergence / max(tokens, 1)}
    return {"ess": effective_share(np.concatenate(ratios)), **told} if ratios else told
