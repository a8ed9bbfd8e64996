"""The actor's update on the round's buffer: BPPO on the critic's advantages, or a baseline on the same data. The online round goes on from it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.files import read_json, sha256_files, write_json
from ratchet.settings import params_hash
from ratchet.settings_critic import NEEDS_CRITIC
from tasks.common import Stage, main, say, skipped, tensorboard
from tasks.progress import by_steps
from tasks.rounds import OFFLINE_NOTE

if TYPE_CHECKING:
    from ratchet.learners.actor import ActorLearner
    from ratchet.learners.batches import Sequence
    from ratchet.losses.base import Term


def run(stage: Stage) -> None:
    """Writes models/rounds/K/offline."""
    assert stage.key is not None
    own, buffer = stage.settings.evolve_offline, stage.path(f"data/rounds/{stage.key}/buffer")
    start = stage.path(f"models/rounds/{stage.settings.rounds[stage.key].prev}/start")
    reason = None if own.enabled else "evolve_offline is off"
    reason = reason or skipped(buffer)
    if reason is None and own.method in NEEDS_CRITIC:
        reason = skipped(stage.path(f"data/rounds/{stage.key}/critic"))
    if reason is not None:
        return hand_on(stage, start, reason)
    _Offline(stage, buffer, start).run()


def hand_on(stage: Stage, start: Path, reason: str) -> None:
    """The online round begins as it would without this stage. What an earlier round's update said of itself is no note of this one's."""
    shutil.copytree(start, stage.out(f"models/rounds/{stage.key}/offline"), dirs_exist_ok=True, ignore=shutil.ignore_patterns(OFFLINE_NOTE))
    stage.metrics({"skipped": reason})
    say(f"{stage.title}: skipped, {reason}")
    stage.finish()


def learner_of(stage: Stage, model: Any, terms: Seq[Term], packing: Any = "branches") -> ActorLearner:
    """The actor's learner at temperature 1: what it reads was played by many."""
    from ratchet.learners.actor import ActorLearner

    own, learner = stage.settings.evolve_offline, stage.settings.learner
    return ActorLearner(
        model,
        terms,
        optimizer=own.optimizer,
        batch_tokens=own.batch_tokens,
        max_grad_norm=own.max_grad_norm,
        autocast=learner.autocast,
        max_grad_norm_ratio=learner.max_grad_norm_ratio,
        packing=packing,
    )


class _Offline:
    def __init__(self, stage: Stage, buffer: Path, start: Path) -> None:
        from ratchet.models.build import card_of

        self.stage, self.own, self.buffer, self.start = stage, stage.settings.evolve_offline, buffer, start
        self.parent = card_of(start)
        self.episodes = {row["episode_id"]: row for row in self._read("episodes").to_pylist()}
        self.rows = {row["episode_id"]: row for row in self._read("buffer").to_pylist()}
        self.steps, self.logprobs = self._read("steps"), self._read("logprobs")

    def run(self) -> None:
        method = self.own.method
        if method == "rerank":
            return self._rerank()
        sequences = self._sequences()
        if method == "rft":
            sequences = [one for one in sequences if one.solved]
        if not sequences:
            return hand_on(self.stage, self.start, "the buffer holds nothing to learn from: no success, or all of its tasks are held out")
        if method == "eto":
            return self._eto(sequences)
        self._improve(sequences)

    def _improve(self, sequences: list[Sequence]) -> None:
        from ratchet.learners.offline import OfflineSettings, improve
        from ratchet.models.build import load_model

        stage, own = self.stage, self.own
        model = load_model(self.start, light=True)
        asked = self._forecasts(model, sequences)
        if own.method != "rft" and own.reference.weight:
            self._refer(sequences)
        learner = learner_of(stage, model, self._terms(), own.forecast.packing)
        loop = OfflineSettings(
            epochs=own.epochs,
            step_tokens=own.step_tokens,
            lr=own.lr,
            warmup_share=own.warmup_share,
            seed=stage.settings.seed,
            max_skipped_share=stage.settings.learner.max_skipped_share,
        )
        bar = by_steps(stage.title, lambda point: f"KL {point.get('reference_kl', 0.0):.4f}")
        with tensorboard(stage) as log:

            def progress(done: int, total: int, point: dict[str, float]) -> None:
                bar(done, total, point)
                for name, value in point.items():
                    log(name, value, done)

            result = improve(learner, sequences, loop, scratch=stage.scratch, progress=progress)
        told = {**vars(result), **asked, "sequences": len(sequences), **self._moved(learner, sequences)}
        self._save(learner.model, told)

    def _moved(self, learner: ActorLearner, sequences: list[Sequence]) -> dict[str, float]:
        """The gates that the stop rule reads."""
        from ratchet.critic.buffer import by_the_start
        from ratchet.learners.offline import moved

        return moved(learner, sequences, by_the_start(self.rows.values()), self.own.ratio_level)

    def _terms(self) -> list[Term]:
        from ratchet.losses.awr import AdvantageWeighted
        from ratchet.losses.clipped_surrogate import ClippedSurrogate
        from ratchet.losses.forecast import Forecast
        from ratchet.losses.kl import ReferenceKL
        from ratchet.losses.likelihood import SuccessLikelihood

        own = self.own
        forecast, reference = Forecast(own.forecast.weight), ReferenceKL(own.reference.weight, own.reference.estimator)
        if own.method == "rft":
            return [SuccessLikelihood(1.0), forecast]
        if own.method == "awr":
            return [AdvantageWeighted(temperature=own.awr.temperature, clip=own.awr.clip), reference, forecast]
        bppo = ClippedSurrogate(low=own.clip.low, high=own.clip.high, dual=own.clip.dual, level=own.ratio_level)
        return [bppo, reference, forecast]

    def _sequences(self) -> list[Sequence]:
        """Episodes that the critic was fitted on, with its advantages where the method reads them, in the order of their ids.

        Steps of older episodes weigh by how likely the actor is to take them now, within `max_ratio`. What an expert did wrong on purpose is
        never imitated; BPPO reads it as what the critic says that it is.
        """
        from ratchet.critic.buffer import by_older_policies, step_ratios
        from ratchet.learners.batches import REPLY, lists, sequences_of, silence
        from ratchet.losses.awr import scaled
        from ratchet.policies.scripted import slips_of

        names = [name for name, row in self.rows.items() if not row["held_out"]]
        advantages = self._advantages() if self.own.method in ("bppo", "awr") else None
        older = by_older_policies(self.rows[name] for name in names)
        if advantages is not None and older:
            ratios = step_ratios(self.steps, self.logprobs, self.own.max_ratio)
            for name in older:
                if self.own.method == "awr":
                    advantages[name] = scaled(advantages[name], ratios[name], self.own.awr.temperature, self.own.awr.clip)
                else:
                    advantages[name] = advantages[name] * ratios[name]
        slips = slips_of(self.steps) if self.own.method != "bppo" else {}
        sequences = sequences_of(self.steps, advantages, names)
        flat, offsets = lists(self.logprobs, "logprobs")
        starts = _first_rows(self.steps)
        for one in sequences:
            row = starts[one.episode_id]
            one.old_logprobs[one.role == REPLY] = flat[offsets[row] : offsets[row + len(one.advantages)]]
            one.solved = bool(self.episodes[one.episode_id]["solved"])
            silence(one, slips.get(one.episode_id, ()))
        return sequences

    def _advantages(self) -> dict[str, np.ndarray]:
        credit = read_table(self.stage.path(f"data/rounds/{self.stage.key}/critic/critic.parquet"), "critic", ["episode_id", "t", "advantage"])
        values = credit["advantage"].to_numpy()
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            names, at = credit["episode_id"].to_pylist(), credit["t"].to_pylist()
            rows = ", ".join(f"{names[i]} t={at[i]}" for i in bad[:3])
            raise RatchetError(f"{self.stage.title}: the critic's advantages are not finite at {rows} ({len(bad)} in all); fit the critic again")
        starts = _first_rows(credit)
        sizes = {name: self.episodes[name]["n_steps"] for name in starts}
        return {name: values[row : row + sizes[name]].copy() for name, row in starts.items()}

    def _refer(self, sequences: list[Sequence]) -> None:
        """Gives them the log-probs of the reference; where that is what the round began with, the buffer has them."""
        from ratchet.models.build import card_of, load_model

        warm = self.stage.path(f"models/warm/{self.stage.settings.actor}")
        if self.own.reference.model == "warm":
            if _tokenizer(warm) != _tokenizer(self.start):
                raise RatchetError(
                    f"{self.stage.title}: the reference {warm} has another tokenizer than the actor at the round's start, so their log-probs are "
                    "not of the same tokens; set evolve_offline.reference.model to round, or its weight to 0"
                )
            if card_of(warm)["version"] != self.parent["version"]:
                found = learner_of(self.stage, load_model(warm, light=True), []).logprobs(sequences)
                for one in sequences:
                    one.reference_logprobs = found[one.episode_id]
                return
        for one in sequences:
            one.reference_logprobs = one.old_logprobs

    def _forecasts(self, model: Any, sequences: list[Sequence]) -> dict[str, float]:
        """Lays the forecasts of the buffer's successes on them; a group are the episodes of one task."""
        from ratchet.episodes.template import load_template
        from ratchet.learners.forecast import Forecaster
        from ratchet.models.branches import check_takes_branches

        own, settings = self.own.forecast, self.stage.settings
        if not own.weight:
            return {}
        if own.packing == "branches":
            check_takes_branches(model, str(self.start), "evolve_offline.forecast.packing to separate")
        shared = ("horizon", "gate", "target_norm", "group_norm", "replace_invalid", "prefixes", "length_power")
        forecaster = Forecaster(
            load_template(self.start, settings.env.action_format),
            samples=settings.buffer.own.samples,
            seed=settings.seed,
            context=int(model.config.get_text_config().max_position_embeddings),
            **{name: getattr(own, name) for name in shared},
        )
        return forecaster.attach(sequences, [self.episodes[one.episode_id]["task_id"] for one in sequences], self.steps)

    def _eto(self, sequences: list[Sequence]) -> None:
        from ratchet.learners.trl_preference import pairs_of, prefer_with_trl
        from ratchet.models.build import load_model

        own, settings = self.own, self.stage.settings
        tasks = {one.episode_id: self.episodes[one.episode_id]["task_id"] for one in sequences}
        pairs = pairs_of(sequences, tasks, own.eto.pairs, settings.seed)
        if not pairs:
            return hand_on(self.stage, self.start, "no task of the buffer has both a success and a failure, so there is no pair to prefer from")
        model, told = prefer_with_trl(
            load_model(self.start),
            pairs,
            beta=own.eto.beta,
            batch=own.eto.batch,
            epochs=own.epochs,
            lr=own.lr,
            warmup_share=own.warmup_share,
            max_grad_norm=own.max_grad_norm,
            seed=settings.seed,
            autocast=settings.learner.autocast,
            folder=self.stage.scratch / "trl",
            tokenizer_folder=self.start,
            progress=by_steps(self.stage.title, lambda point: f"preferred {point['accuracy']:.0%}"),
        )
        self._save(model, {**told, "pairs": len(pairs), **self._moved(learner_of(self.stage, model, []), sequences)})

    def _rerank(self) -> None:
        """The actor as it is, with the critic beside it: a version of its own, which chooses among replies when it plays."""
        from ratchet.critic.rerank import write_reranker
        from ratchet.models.build import load_model

        own = self.own.rerank
        out = self.stage.out(f"models/rounds/{self.stage.key}/offline")
        write_reranker(self.stage.path(f"models/rounds/{self.stage.key}/critic"), out, candidates=own.candidates, temperature=own.temperature)
        self._save(load_model(self.start, light=True), {"candidates": own.candidates})

    def _save(self, model: Any, told: dict[str, Any]) -> None:
        from ratchet.models.build import save_model

        stage, settings = self.stage, self.stage.settings
        out = stage.out(f"models/rounds/{stage.key}/offline")
        card = {
            "stage": "evolve_offline",
            "actor": settings.actor,
            "line": settings.line,
            "round": int(stage.key or 0),
            "iteration": 0,
            "parents": [self.parent["version"]],
            "action_format": settings.env.action_format,
            "data_hashes": {"buffer": read_json(self.buffer / "buffer.json")["hash"]},
            "params_hash": params_hash(settings),
        }
        version = save_model(model, self.start, out, card)
        told = {"method": self.own.method, "version": version, **told}
        write_json(out / OFFLINE_NOTE, {name: value for name, value in told.items() if name != "curve"})
        stage.metrics(told)
        gates = "".join(f", {name} {told[key]:.{digits}f}" for key, name, digits in (("ess", "effective share", 2), ("kl", "KL", 4)) if key in told)
        say(f"{stage.title}: version {version} by {self.own.method}{gates}")
        stage.finish()

    def _read(self, name: str) -> pa.Table:
        return read_table(self.buffer / f"{name}.parquet", name)


def _first_rows(table: pa.Table) -> dict[str, int]:
    from ratchet.episodes.schema import rows_of

    return {name: span.start for name, span in rows_of(table["episode_id"].to_pylist()).items()}


def _tokenizer(folder: Path) -> str:
    return sha256_files([folder / "tokenizer.json"])


if __name__ == "__main__":
    main("evolve_offline", run, "round")
