"""Fits a critic on a fixed buffer: each epoch reads each episode once, in one pass for all of its steps. Resumable to the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.clock import CLOCK
from ratchet.credit.gae import Kind, advantage
from ratchet.credit.returns import discounted
from ratchet.critic.data import Batch, Judged, batch_of
from ratchet.critic.metrics import calibration_error, rank_correlation
from ratchet.critic.model import Critic, Readings
from ratchet.errors import RatchetError
from ratchet.files import sha256_json
from ratchet.learners.batches import pack, shuffled
from ratchet.learners.checkpoint import load_checkpoint, rng_seed, save_checkpoint
from ratchet.learners.optimizers import make_optimizers, schedule, set_lr
from ratchet.learners.safety import check_skipped
from ratchet.losses.expectile import Losses, iql_losses

NAMED = 3  # rows that an error names


@dataclass(frozen=True)
class FitSettings:
    """Those of `fit_critic` (ratchet/settings_critic.py) that fitting needs."""

    epochs: int
    batch_tokens: int
    lr: float
    warmup_share: float
    max_grad_norm: float
    gamma: float
    tau: float
    polyak: float
    aux: bool
    seed: int
    autocast: str = "none"
    max_grad_norm_ratio: float = 1e4
    max_skipped_share: float = 1.0
    checkpoint_every: int = 50


@dataclass
class FitResult:
    curve: list[dict[str, Any]] = field(default_factory=list)  # a point an epoch
    steps: int = 0
    skipped_steps: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])  # of the epoch so far: L_V, L_Q, TD errors, steps of episodes


@dataclass(frozen=True)
class Verdicts:
    """What a critic says of one episode. `value` [T + 1] ends with what a truncated end bootstraps from."""

    value: np.ndarray
    q: np.ndarray
    advantage: np.ndarray


class CriticLearner:
    """Holds the critic and its optimiser; `update` takes one step on a batch of episodes."""

    def __init__(self, critic: Critic, settings: FitSettings) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=not torch.cuda.is_available())
        self.settings, self.device = settings, self.accelerator.device
        self.critic = critic.to(self.device)
        self.optimizers = make_optimizers(critic, "adamw")
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=settings.autocast == "bf16")

    def update(self, batch: Seq[Judged], lr: float) -> tuple[np.ndarray, bool]:
        """One optimiser step. Returns the batch's sums (L_V, L_Q, squared TD errors, steps) and whether the step was skipped, since its
        gradient was not finite or exploded."""
        own, steps = self.settings, sum(len(one.reward) for one in batch)
        sums = np.zeros(4)
        self.critic.train()
        with CLOCK.phase("learning"):
            for group in pack(batch, own.batch_tokens):
                read = batch_of(group, self.device)
                CLOCK.counts["tokens_learned"] += len(read.read.ids)
                with self.autocast:
                    found = self.critic(read.read)
                losses = self._losses(found, read)
                ((losses.value + losses.q) / steps).backward()
                sums += [float(losses.value.detach()), float(losses.q.detach()), float(losses.td.sum()), len(read.reward)]
            return sums, self._step(lr)

    def _losses(self, found: Readings, batch: Batch) -> Losses:
        own = self.settings
        aux = batch.aux if own.aux else torch.zeros_like(batch.aux)
        bootstrap = behind(found.target, batch.reward + aux, batch.terminated, own.gamma)
        return iql_losses(
            found.value, found.q, found.target, batch.reward + aux, batch.following, bootstrap, batch.weight, gamma=own.gamma, tau=own.tau
        )

    def _step(self, lr: float) -> bool:
        parameters = [p for p in self.critic.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.settings.max_grad_norm))
        skipped = not np.isfinite(norm) or norm > self.settings.max_grad_norm * self.settings.max_grad_norm_ratio
        if not skipped:
            set_lr(self.optimizers, lr)
            for optimizer in self.optimizers:
                optimizer.step()
            self.critic.follow(self.settings.polyak)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return skipped

    @torch.no_grad()
    def judge(self, episodes: Seq[Judged], *, kind: Kind = "gae", lam: float = 0.95, traces: dict[str, np.ndarray] | None = None) -> dict[str, Verdicts]:
        """What the critic says of each episode, by id, one pass an episode. `traces` are the truncated ratios of older ones.

        Behind a truncated end, whose last observation is not on record, stands V before the last action [ours]: the target heads hold
        retrospective rewards, which enter no advantage. Raises RatchetError, naming rows, where anything of it is not finite.
        """
        own, out, bad = self.settings, dict[str, Verdicts](), list[str]()
        self.critic.eval()
        with CLOCK.phase("scoring"):
            for group in pack(episodes, own.batch_tokens):
                read = batch_of(group, self.device)
                found = self.critic(read.read)
                ends = torch.where(read.terminated, torch.zeros_like(found.value), found.value)
                value, q, end = (one.double().cpu().numpy() for one in (found.value, found.q.amin(1), ends))
                at = 0
                for one in group:
                    span = slice(at, at := at + len(one.reward))
                    values = np.append(value[span], end[span][-1])
                    trace = (traces or {}).get(one.episode_id)
                    credit = advantage(
                        kind, reward=one.reward, aux=one.aux, value=values, q=q[span], terminated=one.terminated, gamma=own.gamma, lam=lam, trace=trace
                    )
                    out[one.episode_id] = Verdicts(values, q[span], credit)
                    wrong = ~(np.isfinite(values[:-1]) & np.isfinite(q[span]) & np.isfinite(credit))
                    bad += [f"{one.episode_id} t={t}" for t in np.flatnonzero(wrong)]
        if bad:
            more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
            raise RatchetError(
                f"the critic's values are not finite at {', '.join(bad[:NAMED])}{more}; lower fit_critic.lr, or set learner.autocast to none"
            )
        return out


def behind(target: Tensor, reward: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """V of what follows an episode's last action, [S] (read at last steps alone): nothing where the environment ended it.

    For the fit: what was observed after a truncated episode's last action is not on record. The target heads say what its reward and all that
    follows are worth; without the reward that is γ·V, so such an end teaches Q nothing and cuts nothing off [ours].
    """
    return torch.where(terminated, torch.zeros_like(target), (target - reward) / gamma)


def fit(
    critic: Critic,
    train: Seq[Judged],
    held_out: Seq[Judged],
    settings: FitSettings,
    *,
    scratch: Path,
    progress: Callable[[int, int, dict[str, Any]], None] = lambda done, total, point: None,
) -> tuple[CriticLearner, FitResult]:
    """Fits for `epochs`; every epoch a new permutation keyed by (seed, epoch). Interrupted, it goes on from the last checkpoint in `scratch`.

    Raises RatchetError where more than `max_skipped_share` of the steps had to be skipped, and where values are not finite.
    """
    learner, result = CriticLearner(critic, settings), FitResult()
    configuration = sha256_json([scratch.name, asdict(settings)])[:16]
    where = scratch / "critic"
    done = load_checkpoint(where, critic, learner.optimizers, configuration=configuration)
    if done is not None:
        result = FitResult(**done)
    plan = [(epoch, batch) for epoch in range(settings.epochs) for batch in shuffled(train, settings.batch_tokens, rng_seed(settings.seed, epoch))]
    for number in range(result.steps, len(plan)):
        epoch, batch = plan[number]
        sums, skipped = learner.update(batch, settings.lr * schedule(number / len(plan), settings.warmup_share, 0.1))
        result.steps, result.skipped_steps = number + 1, result.skipped_steps + skipped
        check_skipped(result.skipped_steps, len(plan), settings.max_skipped_share, "fit_critic")
        if not skipped:
            result.sums = [float(a + b) for a, b in zip(result.sums, sums, strict=True)]
        if number + 1 == len(plan) or plan[number + 1][0] != epoch:
            point = {"epoch": epoch + 1, **_means(result.sums), **quality(learner, held_out)}
            result.curve.append(point)
            result.sums = [0.0] * 4
            progress(epoch + 1, settings.epochs, point)
        if (number + 1) % settings.checkpoint_every == 0 and number + 1 < len(plan):
            save_checkpoint(where, critic, learner.optimizers, vars(result), configuration=configuration)
    return learner, result


def _means(sums: Seq[float]) -> dict[str, float]:
    value, q, td, steps = sums
    return {name: one / max(steps, 1) for name, one in (("loss_v", value), ("loss_q", q), ("td_error", td))}


def td_error_of(found: Mapping[str, Verdicts], episodes: Seq[Judged], own: FitSettings) -> float | None:
    """Mean squared TD error of Q over the steps of `episodes`, by what `found` says of them; a truncated end has none. None without steps."""
    errors = [np.empty(0)]
    for one in episodes:
        said = found[one.episode_id]
        reward = one.reward + (one.aux if own.aux else 0.0)
        errors.append(np.square(reward + own.gamma * said.value[1:] - said.q)[: len(reward) if one.terminated else -1])
    every = np.concatenate(errors)
    return float(every.mean()) if len(every) else None


def quality(learner: CriticLearner, episodes: Seq[Judged]) -> dict[str, float | None]:
    """`held_out_td_error` (mean squared), `calibration` (of V against the discounted return) and `rank_correlation` (Spearman's, of an
    episode's mean V with its return) on episodes that the critic was not fitted on; None where there are none, or of one outcome."""
    if not episodes:
        return {"held_out_td_error": None, "calibration": None, "rank_correlation": None}
    found = learner.judge(episodes)
    own = learner.settings
    values = [found[one.episode_id].value[:-1] for one in episodes]
    realised = [discounted(one.reward, own.gamma) for one in episodes]
    return {
        "held_out_td_error": td_error_of(found, episodes, own),
        "calibration": calibration_error(np.concatenate(values), np.concatenate(realised)),
        "rank_correlation": rank_correlation([one.mean() for one in values], [one.outcome for one in episodes]),
    }
