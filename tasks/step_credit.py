"""The online rounds' share of each step: a frozen progress meter and, beside it, the round's critic (methods §3, §6).

The verifier alone sets the direction: an episode's advantage keeps its sign, and the token-weighted mean of its weights is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ratchet.episodes.files import read_table, write_table
from ratchet.files import read_json
from tasks.common import Stage, say, skipped

if TYPE_CHECKING:
    from ratchet.critic.learner import CriticLearner
    from ratchet.learners.batches import Sequence as Tokens
    from ratchet.meter.meter import Meter


def step_credit(stage: Stage) -> StepCredit | None:
    """None where neither is used, and where those that are meant are off or have failed their gates, which is said."""
    own = stage.settings.evolve_online
    meter = _meter(stage) if own.meter.enabled else None
    critic = _critic(stage) if own.share.asks_critic else None
    return StepCredit(stage, meter, critic) if meter is not None or critic is not None else None


def _meter(stage: Stage) -> Meter | None:
    from ratchet.meter.meter import Meter

    folder = stage.path(f"models/rounds/{stage.key}/meter")
    if reason := skipped(folder):
        say(f"{stage.title}: without a meter, every step weighs the same: {reason}")
        return None
    return Meter.load(folder)


def _critic(stage: Stage) -> CriticLearner | None:
    from ratchet.critic.learner import CriticLearner
    from ratchet.critic.model import load_critic
    from tasks.fit_critic import fit_settings

    folder, gate = stage.path(f"models/rounds/{stage.key}/critic"), stage.path(f"data/rounds/{stage.key}/critic/gate.json")
    reason = skipped(folder)
    if reason is None and not (verdict := read_json(gate))["passed"]:
        reason = verdict["reason"]
    if reason is not None:
        say(f"{stage.title}: without the critic's share: {reason}")
        return None
    return CriticLearner(load_critic(folder), fit_settings(stage))


def _beta(stage: Stage) -> float:
    """The meter's part of the share."""
    from ratchet.credit.share import beta_of

    beta = stage.settings.evolve_online.share.beta
    if beta != "auto":
        return float(beta)
    sign = _gate(stage, "meter").get("gate", {}).get("sign") or {}  # None where there are no exact labels
    meter, critic = sign.get("signed_balanced_accuracy"), _gate(stage, "critic").get("step_accuracy")
    chosen = beta_of(meter, critic)
    said = ", ".join(f"{name} {'unknown' if one is None else f'{one:.3f}'}" for name, one in (("meter", meter), ("critic", critic)))
    say(f"{stage.title}: the meter's part of the share is {chosen:.2f} (right about held-out steps: {said})")
    return chosen


def _gate(stage: Stage, source: str) -> dict[str, Any]:
    """What the round's gate says of the meter or the critic; empty where there is none."""
    folder = stage.path(f"data/rounds/{stage.key}/{source}")
    path = folder / "gate.json"
    return read_json(path) if path.is_file() and skipped(folder) is None else {}


@dataclass
class _Said:
    """What one source says of some episodes: a mass a step for the share, and its table."""

    masses: list[np.ndarray]
    table: Any  # weights [T] of each episode → pa.Table
    metrics: dict[str, float] = field(default_factory=dict)


class StepCredit:
    """Weighs the steps of an iteration's episodes; keeps what was said of them until the round is over."""

    def __init__(self, stage: Stage, meter: Meter | None, critic: CriticLearner | None) -> None:
        self.stage, self.meter, self.critic, self.own = stage, meter, critic, stage.settings.evolve_online
        self.folder = stage.scratch / "credit"
        self.beta = _beta(stage)

    def apply(self, iteration: int, sequences: Sequence[Tokens], episodes: pa.Table, steps: pa.Table) -> dict[str, float]:
        """Multiplies the advantages of `sequences` with their weights; returns metrics. `episodes` and `steps` are those of the iteration."""
        from ratchet.clock import CLOCK
        from ratchet.credit.share import bounded_mean, mixed_share

        by_id = {row["episode_id"]: row for row in episodes.to_pylist()}
        rows = [by_id[one.episode_id] for one in sequences]
        share = self.own.share
        with CLOCK.phase("meter"):
            said = {name: source(rows, sequences, episodes, steps) for name, source in self._sources.items()}
        weights: list[np.ndarray] = []
        for number, one in enumerate(sequences):
            beta = {"meter": self.beta, "critic": 1 - self.beta}
            q = mixed_share([(beta[name], one_said.masses[number]) for name, one_said in said.items()], len(one.advantages), share.rho)
            weights.append(np.ones(len(q)) if one.silent else bounded_mean(q, _written(one), share.cap, share.form))
            if not one.silent:
                one.advantages = (one.advantages * weights[-1]).astype(np.float32)
        for name, one_said in said.items():
            kept = [None if one.silent else weight for one, weight in zip(sequences, weights, strict=True)]
            write_table(self._part(name, iteration), name, one_said.table(kept))
        loud = [weight for one, weight in zip(sequences, weights, strict=True) if not one.silent]
        flat = np.concatenate([np.empty(0), *loud])
        found = {}
        if len(flat):
            found = {"credit_beta": self.beta, "credit_weight_max": float(flat.max()), "credit_capped_share": float(np.mean(flat >= share.cap * (1 - 1e-9)))}
        return {**found, **{name: value for one_said in said.values() for name, value in one_said.metrics.items()}}

    @property
    def _sources(self) -> dict[str, Any]:
        return {name: source for name, source, there in (("meter", self._of_meter, self.meter), ("critic", self._of_critic, self.critic)) if there is not None}

    def _of_meter(self, rows: list[dict[str, Any]], sequences: Sequence[Tokens], episodes: pa.Table, steps: pa.Table) -> _Said:
        from ratchet.credit.meter import costs, deltas, masses
        from ratchet.meter.sidecar import meter_table

        meter, own = self.meter, self.own.meter
        assert meter is not None
        readings = meter.read(rows, steps)
        found, counts = meter.estimate(rows, readings, soft=own.cost == "soft", free_share=own.free_share, seed=self.stage.settings.seed)
        c, changes, mass, touched = [], [], [], []
        for row, one, estimate in zip(rows, sequences, found, strict=True):
            cost, part = costs(estimate, meter.limit, solved=row["solved"], truncated=row["truncated"], cost=own.cost, terminal=own.terminal)
            c.append(cost)
            changes.append(deltas(cost, part, estimate.tokens, own.delta))
            mass.append(masses(changes[-1], float(one.advantages[0]), sign_reversal=own.sign_reversal))
            if row["solved"]:
                touched.append(not np.all(estimate.parsed & estimate.completable))
        names = [row["episode_id"] for row in rows]
        loud = [one_mass for one, one_mass in zip(sequences, mass, strict=True) if not one.silent]
        metrics = {
            **counts.metrics(),
            "meter_completable_share": float(np.mean(np.concatenate([one.completable for one in found]))) if found else 0.0,
            "meter_cost": float(np.mean(np.concatenate([one[:-1] for one in c]))) if c else 0.0,
            "meter_silent_share": float(np.mean([one.sum() == 0 for one in loud])) if loud else 0.0,
        }
        if touched:
            metrics["c_touched_share"] = float(np.mean(touched))
        return _Said(mass, lambda weights: meter_table(names, found, c, changes, weights), metrics)

    def _of_critic(self, rows: list[dict[str, Any]], sequences: Sequence[Tokens], episodes: pa.Table, steps: pa.Table) -> _Said:
        """s^C from max(sgn(A)·A^GAE, 0)."""
        from ratchet.envs.benchmarks import benchmark
        from ratchet.episodes.labels import PENALTIES, label
        from tasks.fit_critic import credit_table, judged_of

        assert self.critic is not None
        settings = self.stage.settings
        steps = steps.sort_by([("episode_id", "ascending"), ("t", "ascending")])
        aux = label(episodes, steps, getattr(benchmark(settings.env.name), "penalties", PENALTIES))["r_aux"].to_numpy()
        judged = judged_of(self.stage, episodes, steps, aux)
        found = self.critic.judge(judged, kind=settings.fit_critic.advantage, lam=settings.fit_critic.lam)
        signs = [float(np.sign(one.advantages[0])) for one in sequences]
        mass = [np.maximum(sign * np.asarray(found[row["episode_id"]].advantage, np.float64), 0.0) for sign, row in zip(signs, rows, strict=True)]
        names = {row["episode_id"] for row in rows}
        order = [one.episode_id for one in judged if one.episode_id in names]

        def table(weights: list[np.ndarray | None]) -> pa.Table:
            of = {row["episode_id"]: weight for row, weight in zip(rows, weights, strict=True)}
            said = credit_table([one for one in judged if one.episode_id in names], found)
            values: list[float | None] = []
            for name in order:
                weight = of[name]
                values += [None] * len(found[name].advantage) if weight is None else weight.tolist()
            return said.set_column(said.schema.get_field_index("weight"), "weight", pa.array(values, pa.float32()))

        return _Said(mass, table, {"critic_value": float(np.mean([found[name].value[0] for name in order])) if order else 0.0})

    def _part(self, name: str, iteration: int) -> Path:
        return self.folder / f"{name}-{iteration:03d}.parquet"

    def missing(self, iterations: Sequence[int]) -> str | None:
        """What of these iterations is not kept, after a kill."""
        lost = [one for one in iterations if not all(self._part(name, one).is_file() for name in self._sources)]
        return f"the credit of iteration {lost[0]} is missing" if lost else None

    def write(self, iterations: Sequence[int]) -> None:
        """meter.parquet and critic.parquet beside the round's episodes."""
        for name in self._sources:
            table = pa.concat_tables([read_table(self._part(name, one), name) for one in iterations])
            write_table(self.stage.out(f"data/rounds/{self.stage.key}/online/{name}.parquet"), name, table)


def _written(one: Tokens) -> np.ndarray:
    """n_t of each step, as generated; float64 [T]."""
    from ratchet.learners.batches import REPLY

    return np.bincount(one.step[one.role == REPLY], minlength=len(one.advantages)).astype(np.float64)
