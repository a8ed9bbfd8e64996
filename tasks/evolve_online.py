"""Online rounds: the actor plays groups of episodes, gets credit for outcomes, and takes a few steps; candidates are kept on the way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ratchet.envs.benchmarks import open_pool
from ratchet.envs.pool import EnvPool
from ratchet.episodes.files import write_table
from ratchet.errors import RatchetError
from ratchet.evaluation.panels import read_panel
from ratchet.files import let_go
from ratchet.settings import params_hash
from tasks.common import Progress, Stage, main, say, tensorboard
from tasks.forecasts import forecaster_of, loss_of, targets_of
from tasks.online_rollouts import Played, Rollouts, part_name
from tasks.parts import read_parts
from tasks.replays import store_of, with_earlier_successes, write_store
from tasks.rollouts import model_policy
from tasks.rounds import hold_up, keep_candidates, without_online
from tasks.step_credit import step_credit

if TYPE_CHECKING:
    from ratchet.learners.online import Credited
    from ratchet.learners.replay import ReplayStore


def run(stage: Stage) -> None:
    """Writes data/rounds/K/online, data/rounds/K/replay and models/rounds/K/candidates."""
    if reason := hold_up(stage):
        return stage.skip(reason)
    if not stage.settings.evolve_online.enabled:
        return without_online(stage)
    _Online(stage).run()


class _Online:
    """The round's state: learner, curve, and where it stands."""

    def __init__(self, stage: Stage) -> None:
        from ratchet.learners.actor import ActorLearner
        from ratchet.learners.averaging import WeightAverage
        from ratchet.losses.clipped_surrogate import ClippedSurrogate
        from ratchet.losses.forecast import Forecast
        from ratchet.losses.kl import ReferenceKL
        from ratchet.losses.likelihood import SuccessLikelihood
        from ratchet.losses.observation import ObservationLikelihood
        from ratchet.models.build import card_of, load_model

        assert stage.key is not None
        stage.call_players()
        self.stage, self.settings, self.round = stage, stage.settings.evolve_online, int(stage.key)
        own = self.settings
        self.start = stage.path(f"models/rounds/{stage.key}/offline")
        self.parent = card_of(self.start)
        clip = own.clip
        terms = [
            ClippedSurrogate(low=clip.low, high=clip.high, dual=clip.dual, mean=own.loss_mean, level=own.ratio_level),
            ReferenceKL(own.kl_weight),
            ObservationLikelihood(own.echo.weight),
            SuccessLikelihood(own.success_sft.weight),
            Forecast(own.forecast.weight),
        ]
        model = load_model(self.start, light=True)
        self.forecaster = forecaster_of(stage, self.start, model)
        self.learner = ActorLearner(
            model,
            terms,
            optimizer=own.optimizer,
            batch_tokens=own.batch_tokens,
            max_grad_norm=own.max_grad_norm,
            temperature=own.temperature,
            autocast=stage.settings.learner.autocast,
            max_grad_norm_ratio=stage.settings.learner.max_grad_norm_ratio,
            packing=own.forecast.packing,
        )
        self.average = WeightAverage(self.learner.model, own.average)
        self.reference = None
        if own.kl_weight:
            self.reference = ActorLearner(
                load_model(self.start, light=True), terms[:1], optimizer="adamw", batch_tokens=own.batch_tokens, max_grad_norm=1.0, temperature=own.temperature
            )
        self.shares = step_credit(stage)
        self.rollouts = Rollouts(stage, read_panel(stage.path("data/panels/train.json")).tasks)
        self.curve: list[dict[str, Any]] = []
        self.candidates: list[str] = []
        self.replay: ReplayStore | None = None

    def run(self) -> None:
        from ratchet.learners.checkpoint import save_checkpoint

        stage, own = self.stage, self.settings
        done = self._resumed()
        if done is not None:
            self.curve, self.candidates = done["curve"], done["candidates"]
            say(f"{stage.title}: goes on after iteration {len(self.curve)}")
        self.replay = store_of(stage, self._parts(self.curve))
        bar = Progress(stage.title, own.iterations, "iterations", every_s=0, first=len(self.curve))
        bar(len(self.curve))
        with open_pool(stage.path("data/games"), stage.settings.env, ["train"], admissible=False) as pool, tensorboard(stage) as log:
            for iteration in range(len(self.curve) + 1, own.iterations + 1):
                point = self._iterate(iteration, pool)
                for name, value in point.items():
                    log(name, value, iteration)
                if iteration % own.keep_every == 0 or iteration == own.iterations:
                    self._keep(iteration)
                progress = {"curve": self.curve, "candidates": self.candidates}
                state = (self.learner.model, self.learner.optimizers, progress, self.average.weights)
                save_checkpoint(stage.scratch / "checkpoint", *state, configuration=stage.scratch.name)
                bar(iteration, _told(point))
        self._finish()

    def _resumed(self) -> dict[str, Any] | None:
        """Restores the last checkpoint, where the episodes and the candidates that it goes on from are all still there."""
        from ratchet.learners.checkpoint import drop_checkpoint, load_checkpoint, read_progress

        folder = self.stage.scratch / "checkpoint"
        progress = read_progress(folder)
        if progress is not None and (missing := self._missing(progress)):
            drop_checkpoint(folder, f"{missing}; the round is learned again, from the episodes that there are")
        state = (self.learner.model, self.learner.optimizers, self.average.weights)
        return load_checkpoint(folder, *state, configuration=self.stage.scratch.name)

    def _missing(self, progress: dict[str, Any]) -> str | None:
        """What of that which `progress` counts as done is not there."""
        from ratchet.models.build import card_of, version_of

        played, expected = sum(e.num_rows for e, _ in self._parts(progress["curve"])), _episodes(progress["curve"])
        if played != expected:
            return f"{expected - played} of its {expected} episodes are missing"
        if self.shares and (missing := self.shares.missing([point["iteration"] for point in progress["curve"]])):
            return missing
        for name in progress["candidates"]:
            folder = self._candidate(name)
            if not (folder / "ratchet.json").is_file() or version_of(folder) != card_of(folder)["version"]:
                return f"its candidate {name} is not what was saved"
        return None

    def _parts(self, curve: list[dict[str, Any]]) -> list[tuple[pa.Table, pa.Table]]:
        """(episodes, steps) of each shard of the iterations of `curve`, in their order."""
        names = {part_name(point["iteration"], batch) for point in curve for batch in range(1, point["rollout_batches"] + 1)}
        return [part for name, part in read_parts(self.stage.scratch / "parts").items() if name.rpartition("-")[0] in names]

    def _candidate(self, name: str) -> Path:
        """Where a candidate is kept until the round is over."""
        return self.stage.scratch / "candidates" / name

    def _iterate(self, iteration: int, pool: EnvPool) -> dict[str, Any]:
        from ratchet.learners.online import credited, learn

        own = self.settings
        played = self._play(iteration, pool)
        batch = credited(
            played.episodes,
            played.steps,
            credit=own.credit,
            reward=own.reward,
            options=getattr(own, own.credit, None),
            max_length=self.stage.settings.env.max_tokens,
            balance=own.balance,
            only=played.groups,
        )
        shared = self.shares.apply(iteration, batch.sequences, played.episodes, played.steps) if self.shares else {}
        reference = self.reference.logprobs([one for one in batch.sequences if not one.silent]) if self.reference else None
        lr = own.lr * min(1.0, iteration / max(own.warmup, 1))
        asked, learned = self._ask(batch, played)
        metrics = learn(self.learner, learned, steps=own.steps, lr=lr, reference=reference, apart=self._apart)
        self.average.update(self.learner.model)
        self._stop_where_wrong(metrics)
        point = {"iteration": iteration, **_summary(played.episodes, played.steps), **metrics, "loss": metrics.get("policy", 0.0)}
        point |= {**shared, **asked, **loss_of(metrics)}
        point |= _groups(played, batch, own.samples)
        point.setdefault("clip_fraction", 0.0)
        self.curve.append(point)
        return point

    def _ask(self, batch: Credited, played: Played) -> tuple[dict[str, float], Credited]:
        """Lays forecasts on the iteration's episodes, and on earlier ones where replay is on; what there was to ask for, and all episodes."""
        own = self.settings.forecast
        if self.forecaster is None:
            return {}, batch
        norm = {"mixed_only": own.gate == "mixed", "divisor": None if own.group_norm else self.settings.samples}
        batch, steps, earlier, found = with_earlier_successes(self.replay, batch, played.episodes, played.steps, self.learner, **norm)
        strata = None if self.settings.balance == "none" else batch.strata
        asked = self.forecaster.attach(batch.sequences, batch.group_ids, steps, strata, earlier)
        if self.replay is not None:
            self.replay.add(played.episodes, played.steps)
        return {**asked, **found}, batch

    @property
    def _steps(self) -> int:
        """All optimiser steps that the round takes."""
        own = self.settings
        return own.iterations * own.steps * (2 if self.forecaster and self._apart else 1)

    @property
    def _apart(self) -> frozenset[str]:
        """Terms that take optimiser steps of their own."""
        return frozenset({"forecast"}) if self.settings.forecast.mode == "separate" else frozenset()

    def _stop_where_wrong(self, metrics: dict[str, Any]) -> None:
        """Raises RatchetError where what was learned cannot be trusted; nothing of the iteration is kept but its episodes."""
        from ratchet.learners.safety import check_agreement, check_skipped

        own = self.settings
        skipped = metrics["skipped_steps"] + sum(point["skipped_steps"] for point in self.curve)
        try:
            check_agreement(metrics["logprob_max_diff"], own.logprob_limit)
            check_skipped(skipped, self._steps, self.stage.settings.learner.max_skipped_share, "evolve_online")
        except RatchetError as error:
            raise RatchetError(f"round {self.round}, iteration {len(self.curve) + 1}: {error}") from None

    def _play(self, iteration: int, pool: EnvPool) -> Played:
        own, stage = self.settings, self.stage
        policy = model_policy(
            self.start, stage.settings, policy_id=stage.settings.actor, rows=own.shard, temperature=own.temperature, model=self.learner.model
        )
        policy.version = f"{self.parent['version']}+{self.round}.{iteration - 1}"
        return self.rollouts.play(iteration, policy, pool)

    def _keep(self, iteration: int) -> None:
        from ratchet.models.build import save_model

        name = f"iter-{iteration:03d}"
        card = {
            "stage": "evolve_online",
            "actor": self.stage.settings.actor,
            "line": self.stage.settings.line,
            "round": self.round,
            "iteration": iteration,
            "parents": [self.parent["version"]],
            "action_format": self.stage.settings.env.action_format,
            "params_hash": params_hash(self.stage.settings),
        }
        let_go(self._candidate(name))
        with self.average.laid_into(self.learner.model):
            save_model(self.learner.model, self.start, self._candidate(name), card)
        self.candidates.append(name)

    def _finish(self) -> None:
        stage = self.stage
        parts, expected = self._parts(self.curve), _episodes(self.curve)
        episodes, steps = pa.concat_tables([e for e, _ in parts]), pa.concat_tables([s for _, s in parts])
        if episodes.num_rows != expected:
            raise RatchetError(f"{stage.title}: {episodes.num_rows} episodes are kept, {expected} were played; run the stage again")
        write_table(stage.out(f"data/rounds/{self.round}/online/episodes.parquet"), "episodes", episodes)
        write_table(stage.out(f"data/rounds/{self.round}/online/steps.parquet"), "steps", steps)
        if self.shares:
            self.shares.write([point["iteration"] for point in self.curve])
        keep_candidates(stage, {name: self._candidate(name) for name in self.candidates})
        write_store(stage, self.replay)
        if self.forecaster and not targets_of(self.curve):
            gate = self.settings.forecast.gate
            say(f"{stage.title}: warning: forecast.gate={gate} left no episode to forecast in any iteration, so this round was learned without")
        stage.metrics({"curve": self.curve, "candidates": self.candidates})
        stage.finish()


def _episodes(curve: list[dict[str, Any]]) -> int:
    return sum(point["episodes"] for point in curve)


def _told(point: dict[str, Any]) -> str:
    """An iteration in a line of progress."""
    said = f"success {100 * point['success']:.1f} %, clipped {100 * point['clip_fraction']:.1f} %"
    alike = f", {point['zero_variance_groups']} of {point['groups']} groups alike"
    alike += f" ({point['resampled_groups']} drawn on top)" if point["resampled_groups"] else ""
    return said + alike + (f", {point['skipped_steps']} steps skipped" if point["skipped_steps"] else "")


def _groups(played: Played, batch: Credited, samples: int) -> dict[str, Any]:
    """What the iteration's groups were like, those that were played in vain included."""
    return {
        "groups": batch.groups + played.silent_groups + played.spare_groups,
        "zero_variance_groups": batch.zero_variance_groups + played.silent_groups,
        "resampled_groups": played.resampled_groups,
        "resampled_episodes": played.resampled_groups * samples,
        "rollout_batches": played.batches,
        "silent_share": batch.silent_share,
        "null_tasks": played.null_tasks,
    }


def _summary(episodes: pa.Table, steps: pa.Table) -> dict[str, Any]:
    """What the iteration's rollouts were like; errors are left out and counted."""
    rows = [row for row in episodes.to_pylist() if row["error"] is None]

    def mean(values: list[Any]) -> float:
        return float(np.mean(values)) if values else 0.0

    entropy = steps["entropy"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return {
        "success": mean([row["solved"] for row in rows]),
        "score": mean([row["score"] for row in rows]),
        "episodes": episodes.num_rows,
        "errors": episodes.num_rows - len(rows),
        "generated_tokens": sum(row["n_tokens"] for row in rows),
        "env_steps": sum(row["n_steps"] for row in rows),
        "truncated_share": mean([row["truncated"] for row in rows]),
        "invalid_share": mean([not one for one in steps["valid"].to_pylist()]),
        "format_ok_share": mean(steps["format_ok"].to_pylist()),
        "entropy": float(entropy.mean()) if len(entropy) else 0.0,
    }


if __name__ == "__main__":
    main("evolve_online", run, "round")
