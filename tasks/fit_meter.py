"""The round's progress meter: one that still deserves trust is passed on; else one is fitted on the newest pool, and left out if it fails."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.episodes.files import read_table, write_table
from ratchet.files import read_json, write_json
from ratchet.settings import params_hash
from tasks.common import SKIPPED, Stage, main, say, skipped
from tasks.progress import by_steps
from tasks.rounds import hold_up

if TYPE_CHECKING:
    from ratchet.credit.meter import Estimates
    from ratchet.meter.labels import Labelled
    from ratchet.meter.meter import Meter
    from ratchet.meter.read import Reading

OFF = "drift.detected"  # what a meter that is off is told as


def run(stage: Stage) -> None:
    """Writes models/rounds/K/meter and data/rounds/K/meter."""
    assert stage.key is not None
    if not stage.settings.evolve_online.meter.enabled:
        return stage.skip("evolve_online.meter is off")
    if reason := hold_up(stage):
        return stage.skip(reason)
    _Fit(stage).run()


class Held:
    """Episodes with what a meter says of them."""

    def __init__(self, meter: Meter, rows: Sequence[dict[str, Any]], steps: pa.Table, *, soft: bool, free_share: float, seed: int) -> None:
        from ratchet.meter.read import labelled

        self.meter, self.rows = meter, list(rows)
        self.readings = meter.read(self.rows, steps)
        factors = meter.factors
        self.labels = [labelled(one, row, meter.target, factors.get(row["policy_id"], 1.0)) for one, row in zip(self.readings, self.rows, strict=True)]
        self.estimates, self.counts = meter.estimate(self.rows, self.readings, soft=soft, free_share=free_share, seed=seed)


class _Fit:
    def __init__(self, stage: Stage) -> None:
        assert stage.key is not None
        self.stage, self.own, self.credit, self.key = stage, stage.settings.fit_meter, stage.settings.evolve_online.meter, stage.key
        harvest = stage.path(f"data/rounds/{stage.key}/harvest")
        episodes = read_table(harvest / "episodes.parquet", "episodes")
        self.rows = [row for row in episodes.to_pylist() if row["error"] is None and row["n_steps"] > 0]
        ids = pa.array([row["episode_id"] for row in self.rows], pa.string())
        steps = read_table(harvest / "steps.parquet", "steps")
        self.steps = steps.filter(pc.is_in(steps["episode_id"], value_set=ids))

    def run(self) -> None:
        before = self._before()
        first = None
        if before is not None:
            first = self._looked_at(before)
            if first["passed"] or not self.own.gate.enforce:
                return self._passed_on(before, first)
            say(f"{self.stage.title}: the meter of before is fitted again, because {_said(first)}")
        self._fitted(first)

    def _before(self) -> Path | None:
        """The meter that there is, or None."""
        from ratchet.meter.meter import card_of, check_environment

        previous = self.stage.path(f"models/rounds/{self.stage.settings.rounds[self.key].prev}/meter")
        found = previous if skipped(previous) is None else None
        if found is None and self.credit.given is not None and self.key == "1":
            found = self.stage.path(self.credit.given)
            check_environment(card_of(found), self.stage.settings.env.name, self.credit.transfer, str(found))
        return found

    def _looked_at(self, folder: Path) -> dict[str, Any]:
        """The gate's verdict on a meter that none of this round's harvest has trained."""
        from ratchet.meter.meter import Meter

        held = self._held(Meter.load(folder), self.rows)
        verdict, _ = self._judged(held, fresh=False)
        self._write_held(held)
        return verdict

    def _held(self, meter: Meter, rows: Sequence[dict[str, Any]]) -> Held:
        share = max(self.credit.free_share, 0.05)
        return Held(meter, rows, self.steps, soft=self.credit.cost == "soft", free_share=share, seed=self.stage.settings.seed)

    def _judged(self, held: Held, *, fresh: bool) -> tuple[dict[str, Any], float]:
        """(verdict, temperature). A fresh meter is not calibrated yet: each half of the episodes is judged by the other's temperature."""
        from ratchet.evaluation.step_labels import step_labels
        from ratchet.meter.gate import cross_fitted, fit_temperature, judge, step_deltas

        meter, credit = held.meter, self.credit
        asked = [np.flatnonzero(one.points >= 0) for one in held.readings]
        able = np.array([one.values[t] is not None for one, places in zip(held.labels, asked, strict=True) for t in places], bool)
        p = _joined([one.p[places] for one, places in zip(held.estimates, asked, strict=True)])
        completable = _joined([one.completable[places] for one, places in zip(held.estimates, asked, strict=True)]).astype(bool)
        temperature, estimates = meter.temperature, held.estimates
        if fresh:
            logit = np.log(np.clip(p, 1e-12, 1)) - np.log(np.clip(1 - p, 1e-12, 1))  # at temperature 1
            half = _joined([np.full(len(places), number % 2) for number, places in enumerate(asked)]).astype(bool)
            temperature, p = fit_temperature(logit, able), cross_fitted(logit, able, half)
            estimates = _with(estimates, asked, p)
        _, changes = step_deltas(estimates, held.labels, meter.limit, delta=credit.delta, cost=credit.cost, terminal=credit.terminal)
        source, exact = step_labels(self.stage.settings.env, self.stage.path("data/games"), held.rows, self.steps)
        verdict = judge(
            completable=completable, p=p, able=able, changes=changes, exact=exact, source=source,
            unparsable=held.counts.unparsable / max(held.counts.free, 1), limits=self.own.gate,
        )  # fmt: skip
        return {**verdict, "too_long": held.counts.too_long, "free": held.counts.free}, temperature

    def _fitted(self, first: dict[str, Any] | None) -> None:
        """Fits one, judges it on episodes that it has not seen, and writes it, or that there is none."""
        from ratchet.meter.labels import describe, split

        made = _Making(self.stage, self.rows, self.steps)
        parts = split(made.labels, self.own.split.model_dump(), self.stage.settings.seed)
        counts = describe(parts)
        told = ", ".join(f"{one['prefixes']} for {name}" for name, one in counts.items())
        say(f"{self.stage.title}: {len(self.rows)} episodes; prefixes {told}")
        meter, curves = made.fit(parts)
        held_ids = {one.episode_id for one in parts["calibration"]}
        held = self._held(meter, [row for row in self.rows if row["episode_id"] in held_ids])
        verdict, meter.temperature = self._judged(held, fresh=True)
        action = "fitted" if first is None else "fitted again"
        is_off = not verdict["passed"] and self.own.gate.enforce
        out = self.stage.out(f"models/rounds/{self.key}/meter")
        version = None
        if is_off:
            write_json(out / SKIPPED, {"skipped": f"the meter is off: {_said(verdict)}"})
        else:
            version = made.save(meter, out, verdict, counts)
        held.estimates = [self._calibrated(one, meter) for one in held.estimates]
        self._write_held(held)
        self._finish({"action": "off" if is_off else action, "version": version, "gate": verdict, "before": first, "pool": counts,
                      "temperature": meter.temperature, "limit": meter.limit, "factors": meter.factors}, curves)  # fmt: skip

    def _calibrated(self, one: Estimates, meter: Meter) -> Estimates:
        from dataclasses import replace

        logit = np.log(np.clip(one.p, 1e-12, 1)) - np.log(np.clip(1 - one.p, 1e-12, 1))
        return replace(one, p=np.where(one.parsed, meter.probability(logit), 0.0))

    def _passed_on(self, folder: Path, verdict: dict[str, Any]) -> None:
        shutil.copytree(folder, self.stage.out(f"models/rounds/{self.key}/meter"), dirs_exist_ok=True)
        card = read_json(folder / "meter.json")
        self._finish({"action": "passed on", "version": card["version"], "gate": verdict, "before": None, "pool": None,
                      "temperature": card["temperature"], "limit": card["limit"], "factors": card["factors"]}, {})  # fmt: skip

    def _write_held(self, held: Held) -> None:
        """scores.parquet: what the meter says of the episodes that it is judged on."""
        from ratchet.meter.gate import step_deltas
        from ratchet.meter.sidecar import meter_table

        credit = self.credit
        c, changes = step_deltas(held.estimates, held.labels, held.meter.limit, delta=credit.delta, cost=credit.cost, terminal=credit.terminal)
        table = meter_table([row["episode_id"] for row in held.rows], held.estimates, c, changes, [None] * len(held.rows))
        write_table(self.stage.out(f"data/rounds/{self.key}/meter/scores.parquet"), "meter", table)

    def _finish(self, told: dict[str, Any], curves: dict[str, Any]) -> None:
        verdict = told["gate"]
        out = f"data/rounds/{self.key}/meter"
        write_json(self.stage.out(f"{out}/gate.json"), {"event": OFF if told["action"] == "off" else None, "reason": _said(verdict), **told})
        calibration = {name: told[name] for name in ("temperature", "limit", "factors")} | {name: verdict[name] for name in ("ece", "reliability", "prefixes")}
        write_json(self.stage.out(f"{out}/calibration.json"), calibration)
        self.stage.metrics({**{k: v for k, v in told.items() if k != "factors"}, "curves": curves})
        say(f"{self.stage.title}: {told['action']}; {_said(verdict)}")
        self.stage.finish()


class _Making:
    """Makes a meter of the pool."""

    def __init__(self, stage: Stage, rows: Sequence[dict[str, Any]], steps: pa.Table) -> None:
        from ratchet.meter.base import make_base
        from ratchet.meter.labels import verbosity
        from ratchet.meter.meter import Meter
        from ratchet.meter.read import labelled

        self.stage, self.own = stage, stage.settings.fit_meter
        self.base = stage.path(f"models/warm/{self.own.base or stage.settings.actor}")
        self.words = stage.scratch / "words"
        model, template, grammar, alike = make_base(self.base, self.words, stage.settings.env.action_format, stage.settings.seed)
        self.meter = Meter(model, template, grammar, self.own.form, self.own.target, alike=frozenset([template.tokenizer_id, *alike]))
        self.readings: list[Reading] = self.meter.read(rows, steps)
        if self.own.normalise:
            by_policy: dict[str, list[np.ndarray]] = {}
            for row, reading in zip(rows, self.readings, strict=True):
                by_policy.setdefault(row["policy_id"], []).append(reading.tokens)
            self.meter.factors = verbosity(by_policy)
        factors = self.meter.factors
        self.labels: list[Labelled] = [
            labelled(one, row, self.own.target, factors.get(row["policy_id"], 1.0)) for one, row in zip(self.readings, rows, strict=True)
        ]
        self.meter.limit = self._limit()

    def _limit(self) -> float:
        """C: a multiple of a high percentile of what successes still have to write; for scores, all of it is missing."""
        from ratchet.meter.labels import SCALE

        own = self.stage.settings.evolve_online.meter.failure_cost
        values = [value for one in self.labels if one.solved for value in one.values if value is not None]
        return float(SCALE) if self.own.target == "score" or not values else float(np.ceil(own.factor * np.percentile(values, own.percentile)))

    def fit(self, parts: dict[str, list[Labelled]]) -> tuple[Meter, dict[str, Any]]:
        """The meter behind both stages, and their curves."""
        from ratchet.meter.fit import Rl, Sft, chosen, examples_of, rl_with_trl, sft_with_learner, sft_with_trl

        meter, own, settings = self.meter, self.own, self.stage.settings
        place = {one.episode_id: number for number, one in enumerate(self.labels)}
        sft = Sft(own.sft.epochs, own.sft.lr, own.sft.batch, settings.seed, settings.learner.autocast, own.balance)
        readings, examples = {}, {}
        for name in ("sft", "rl"):
            numbers = [place[one.episode_id] for one in parts[name]]
            readings[name] = [self.readings[number] for number in numbers]
            examples[name] = examples_of(readings[name], [self.labels[number] for number in numbers], own.prefixes, settings.seed)
        curves: dict[str, Any] = {}
        if own.form == "head":
            from ratchet.meter.fit_head import fit_head

            some = chosen(examples["sft"], own.sft.examples, False, settings.seed)
            meter.head, curves["sft"] = fit_head(
                meter.model, meter.grammar, readings["sft"], some, sft, batch_tokens=settings.evolve_online.batch_tokens, progress=self._bar("head")
            )
        elif own.sft.trainer == "learner":
            some = chosen(examples["sft"], own.sft.examples, False, settings.seed)
            meter.model, curves["sft"] = sft_with_learner(
                meter.model, meter.grammar, readings["sft"], some, sft, batch_tokens=settings.evolve_online.batch_tokens, progress=self._bar("sft")
            )
        else:
            some = chosen(examples["sft"], own.sft.examples, own.balance, settings.seed)
            curves["sft"] = sft_with_trl(meter.model, meter.template, meter.grammar, some, sft, scratch=self.stage.scratch, progress=self._bar("sft"))
        if own.form == "written" and own.rl.steps:
            if not examples["rl"]:
                say(f"{self.stage.title}: none of the pool's tasks fell to fit_meter.split.rl, so the meter has no second stage")
            rl = Rl(own.rl.steps, own.rl.lr, own.rl.prompts, own.rl.samples, own.rl.max_tokens, own.rl.temperature, settings.seed)
            some = chosen(examples["rl"], None, own.balance, settings.seed)
            curves["rl"] = rl_with_trl(meter.model, meter.template, meter.grammar, some, rl, scratch=self.stage.scratch, progress=self._bar("rl"))
        meter.model.eval()
        return meter, curves

    def _bar(self, name: str) -> Any:
        return by_steps(f"{self.stage.title} {name}", lambda point: ", ".join(f"{key} {value:.3f}" for key, value in point.items() if key != "step"))

    def save(self, meter: Meter, out: Path, verdict: dict[str, Any], counts: dict[str, Any]) -> str:
        from ratchet.meter.head import save_head
        from ratchet.meter.meter import CARD
        from ratchet.models.build import card_of, save_model

        settings = self.stage.settings
        out.mkdir(parents=True, exist_ok=True)
        if meter.head is not None:
            save_head(meter.head, out)
        parent = card_of(self.base)["version"]
        card = {
            "kind": "meter",
            "stage": "fit_meter",
            "actor": self.own.base or settings.actor,
            "line": settings.line,
            "round": int(self.stage.key or 0),
            "iteration": 0,
            "parents": [parent],
            "action_format": settings.env.action_format,
            "params_hash": params_hash(settings),
        }
        version = save_model(meter.model, self.words, out, card)
        told = {
            "version": version,
            "form": meter.form,
            "target": meter.target,
            "env": settings.env.name,
            "options": settings.env.options.model_dump(mode="json"),
            "action_format": settings.env.action_format,
            "alike": sorted(meter.alike),
            "temperature": meter.temperature,
            "limit": meter.limit,
            "factors": meter.factors,
            "base": parent,
            "pool": counts,
            "gate": {name: verdict[name] for name in ("passed", "failed", "accuracy", "majority", "ece", "unparsable", "prefixes")},
        }
        write_json(out / CARD, told)
        return version


def _with(estimates: Sequence[Estimates], asked: Sequence[np.ndarray], p: np.ndarray) -> list[Estimates]:
    """The estimates with `p` at the places that were asked about, joined as `_joined` does."""
    from dataclasses import replace

    out, at = [], 0
    for one, places in zip(estimates, asked, strict=True):
        own = one.p.copy()
        own[places] = p[at : at + len(places)]
        out.append(replace(one, p=np.where(one.parsed, own, 0.0)))
        at += len(places)
    return out


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0), *parts])


def _said(verdict: dict[str, Any]) -> str:
    from ratchet.meter.gate import said

    return said(verdict)


if __name__ == "__main__":
    main("fit_meter", run, "round")
