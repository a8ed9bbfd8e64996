"""Has what a policy does changed? Round against round, and against the warm start, column by column (Evidently).

A column drifts where its score is beyond a limit *and* beyond chance: the same score when it is drawn by lot which episode belongs
to which side. On small data a score is large by chance alone, and a limit without this would flap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from monitoring.drift_columns import COLUMNS, Column, ColumnType, Side, common_types, summary, text_features, thin
from monitoring.drift_methods import auc, score

DRAWS = 99  # lots; a score above all of them is one in a hundred by chance
FEW = 10  # episodes of a stratum below which its rates say nothing
RIDGE = 1.0
SEED = 20260101
OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Limits:
    """Scores from which a column warns and fails; None where it never does."""

    warn: float | None
    fail: float | None


def compare_sides(reference: Side, current: Side, limits: Mapping[str, Limits], against: str) -> list[dict[str, Any]]:
    """One finding for each column that both sides have and `limits` names: `{"name", "column", "against", "method", "observed",
    "chance", "warn", "fail", "level", "detail", "by", "reference", "current"}`, plain JSON.

    `against` says what the reference is (`warm`, `previous`, …). `chance` is the largest score of `DRAWS` lots, and None where the
    score is within the limits, so that nothing had to be drawn. `by` holds the rates of strata.
    """
    draws = _Lots(reference, current)
    found = []
    for name, limit in limits.items():
        first, second = reference.columns.get(name), current.columns.get(name)
        if second is None or (first is None and COLUMNS[name].kind != "ratios") or not len(second.values):
            continue
        found.append(_finding(name, first or Column(np.zeros(0), np.zeros(0, int)), second, (reference, current), limit, against, draws))
    return found


def _finding(
    name: str, reference: Column, current: Column, sides: tuple[Side, Side], limit: Limits, against: str, lots: _Lots
) -> dict[str, Any]:
    kind = COLUMNS[name]
    measure = _MEASURES[kind.kind](kind, reference, current, sides)
    chance = None
    if _level(measure.observed, limit, kind.higher) != OK and measure.lot is not None:
        scores = [measure.lot(swapped) for swapped in lots.draw(reference, current, measure.shared)]
        chance = max(scores) if kind.higher else min(scores)
    beyond = chance is None or (measure.observed > chance if kind.higher else measure.observed < chance)
    return {
        "name": f"drift.{name}",
        "column": name,
        "against": against,
        "method": kind.method,
        "detail": kind.detail,
        "observed": round(measure.observed, 6),
        "chance": None if chance is None else round(chance, 6),
        "warn": limit.warn,
        "fail": limit.fail,
        "level": _level(measure.observed, limit, kind.higher) if beyond else OK,
        "by": measure.by,
        "reference": summary(name, reference),
        "current": summary(name, current),
    }


def _level(observed: float, limit: Limits, higher: bool) -> str:
    sign = 1 if higher else -1
    for level, bound in ((FAIL, limit.fail), (WARN, limit.warn)):
        if bound is not None and sign * observed > sign * bound:
            return level
    return OK


@dataclass
class _Measure:
    """A score, the same score for a lot (a mask over the rows of both sides, True = counted as current), and rates of strata."""

    observed: float
    lot: Callable[[np.ndarray], float] | None = None
    by: dict[str, Any] | None = None
    shared: tuple[Column, Column] | None = None  # the rows that the lot is about, where they are fewer than the columns'


class _Lots:
    """Which episodes change sides. Where both sides played the same tasks, all episodes of a task change together, or none: that is
    what could have happened by chance. Else any episodes do."""

    def __init__(self, reference: Side, current: Side) -> None:
        names, codes = np.unique(np.concatenate([reference.tasks, current.tasks]).astype(str), return_inverse=True)
        self.first, self.codes, self.tasks = reference.count, codes, len(names)
        shared = np.isin(current.tasks.astype(str), reference.tasks.astype(str))
        self.paired = bool(len(shared)) and shared.mean() > 0.9

    def draw(self, reference: Column, current: Column, shared: tuple[Column, Column] | None) -> Any:
        """For each lot, which of the rows (reference's, then current's) count as current."""
        one, two = shared or (reference, current)
        outside = max(int(column.owner.max(initial=-1)) for column in (one, two)) >= 0 and not self._of_sides(one, two)
        first = int(one.owner.max(initial=-1)) + 1 if outside else self.first
        rows = np.concatenate([one.owner, two.owner + first])
        count = int(rows.max(initial=-1)) + 1 if outside else len(self.codes)
        is_current = np.arange(count) >= first
        rng = np.random.default_rng(SEED)
        for _ in range(DRAWS):
            if self.paired and not outside:
                swap = rng.random(self.tasks) < 0.5
                yield (is_current ^ swap[self.codes])[rows]
            else:
                yield rng.permutation(is_current)[rows]

    def _of_sides(self, one: Column, two: Column) -> bool:
        """Whether the owners are rows of the sides; those of sidecars are episodes of their own."""
        return one.owner.max(initial=-1) < self.first and two.owner.max(initial=-1) < len(self.codes) - self.first


def _numbers(kind: ColumnType, reference: Column, current: Column, sides: tuple[Side, Side]) -> _Measure:
    """Wasserstein distance, in standard deviations of the reference."""
    values = np.concatenate([reference.values, current.values])
    order = np.argsort(values, kind="stable")
    gaps = np.diff(values[order])
    own = max(float(np.std(reference.values)), 0.001)  # as Evidently's test
    deviation = max(own, kind.least)

    def lot(mask: np.ndarray) -> float:
        mine = mask[order]
        there = np.cumsum(mine)[:-1] / max(1, mine.sum())
        here = np.cumsum(~mine)[:-1] / max(1, (~mine).sum())
        return float((np.abs(there - here) * gaps).sum() / deviation)

    return _Measure(score(kind.method, reference.values, current.values) * own / deviation, lot)


def _kinds(kind: ColumnType, reference: Column, current: Column, sides: tuple[Side, Side]) -> _Measure:
    """Jensen-Shannon distance (the root of the divergence in nats) of the shares of kinds."""
    first, second = common_types(reference.values, current.values)
    names, codes = np.unique(np.concatenate([first, second]).astype(str), return_inverse=True)

    def lot(mask: np.ndarray) -> float:
        counts = np.bincount(codes + len(names) * mask, minlength=2 * len(names)).reshape(2, -1)
        p, q = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        mean = (p + q) / 2
        halves = [np.where(one > 0, one * np.log(np.maximum(one, 1e-300) / np.maximum(mean, 1e-300)), 0.0).sum() / 2 for one in (p, q)]
        return float(np.sqrt(max(0.0, sum(halves))))

    return _Measure(score(kind.method, first, second), lot)


def _rates(kind: ColumnType, reference: Column, current: Column, sides: tuple[Side, Side]) -> _Measure:
    """The largest difference of rates, over all and in any stratum with at least FEW episodes on both sides."""
    strata = np.concatenate([side.strata[column.owner] for side, column in zip(sides, (reference, current), strict=True)]).astype(str)
    is_current = np.arange(len(strata)) >= len(reference.values)
    values = np.concatenate([reference.values, current.values])
    by: dict[str, Any] = {}
    groups = [np.ones(len(values), bool)]
    for name in np.unique(strata):
        if min(int((side.strata.astype(str) == name).sum()) for side in sides) < FEW:
            continue
        rows = strata == name
        first, second = values[rows & ~is_current], values[rows & is_current]
        if not len(first) or not len(second):
            continue
        by[str(name)] = {
            "reference": round(float(first.mean()), 6),
            "current": round(float(second.mean()), 6),
            "difference": round(score(kind.method, first, second), 6),
        }
        groups.append(rows)
    whole = score(kind.method, reference.values, current.values)

    def lot(mask: np.ndarray) -> float:
        return max(_difference(values[rows], mask[rows]) for rows in groups)

    return _Measure(max([whole, *(one["difference"] for one in by.values())]), lot, by)


def _difference(values: np.ndarray, mask: np.ndarray) -> float:
    return float(abs(values[mask].mean() - values[~mask].mean())) if mask.any() and not mask.all() else 0.0


def _ratios(kind: ColumnType, reference: Column, current: Column, sides: tuple[Side, Side]) -> _Measure:
    """A number of the current side alone."""
    return _Measure(score(kind.method, reference.values, current.values))


def _texts(kind: ColumnType, reference: Column, current: Column, sides: tuple[Side, Side]) -> _Measure:
    """AUC of a linear classifier on hashed words, told on tasks that it did not learn from: each task lies in one of two halves, and
    the scores of one half are those of the classifier of the other."""
    one, two = thin(reference), thin(current)
    features = text_features(np.concatenate([one.values, two.values])).astype(np.float64)
    features = np.column_stack([features, np.ones(len(features))])
    tasks = np.concatenate([side.tasks[column.owner] for side, column in zip(sides, (one, two), strict=True)]).astype(str)
    _, codes = np.unique(tasks, return_inverse=True)
    halves = [codes % 2 == half for half in (0, 1)]
    solvers = [np.linalg.inv(features[rows].T @ features[rows] + RIDGE * np.eye(features.shape[1])) @ features[rows].T for rows in halves]

    def scores(mask: np.ndarray) -> np.ndarray:
        told = np.zeros(len(mask))
        for rows, other, solver in zip(halves, halves[::-1], solvers, strict=True):
            told[other] = features[other] @ (solver @ np.where(mask[rows], 1.0, -1.0))
        return told

    def lot(mask: np.ndarray) -> float:
        told = scores(mask)
        return auc(told[~mask], told[mask])

    told = scores(np.arange(len(features)) >= len(one.values))
    return _Measure(score(kind.method, told[: len(one.values)], told[len(one.values) :]), lot, shared=(one, two))


_MEASURES = {"numbers": _numbers, "kinds": _kinds, "rates": _rates, "ratios": _ratios, "texts": _texts}


def verdict(findings: list[dict[str, Any]]) -> dict[str, Any]:
    """`{"passed", "status", "skipped", "columns"}`: the worst level, and `passed` where no column failed."""
    levels = {one["level"] for one in findings}
    status = FAIL if FAIL in levels else WARN if WARN in levels else OK
    return {"passed": status != FAIL, "status": status, "skipped": None, "columns": findings}
