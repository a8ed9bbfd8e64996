"""Differences between arms: paired over seeds and over tasks, resampled seeds first and then clusters of tasks.

Legend: S seeds · T tasks · C clusters · R resamples. An arm's outcomes are [S, T] of 0 and 1, seeds and tasks in the same order in
both arms, which began from the same warm start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratchet.evaluation.intervals import expanded_tail

LEVEL = 0.95
RESAMPLES = 20_000
SEED = 20260101
SMOOTH = 3  # iterations of a running mean


@dataclass(frozen=True)
class Difference:
    """Mean of b − a with its two-sided 95 % interval; `by_seed` is what each seed says alone."""

    mean: float
    low: float
    high: float
    by_seed: list[float]

    def figures(self, name: str) -> dict[str, float]:
        return {name: round(self.mean, 4), f"{name}_low": round(self.low, 4), f"{name}_high": round(self.high, 4)}


def paired(a: np.ndarray, b: np.ndarray, clusters: np.ndarray, *, resamples: int = RESAMPLES, level: float = LEVEL) -> Difference:
    """b − a, both [S, T]; `clusters` [T].

    A resample draws S seeds, then C clusters, which are the same for all drawn seeds because all of them play the same panel (Owen 2007,
    the pigeonhole bootstrap); what it averages are the tasks of the drawn clusters under the drawn seeds. Percentiles are expanded for
    few seeds (Hesterberg 2015). One seed says nothing about others: then clusters alone are resampled, which the caller has to say.
    """
    gaps = np.asarray(b, np.float64) - np.asarray(a, np.float64)
    names, inverse = np.unique(clusters, return_inverse=True)
    seeds, count = len(gaps), len(names)
    sums_S_C = np.stack([np.bincount(inverse, row, count) for row in gaps])
    sizes_C = np.bincount(inverse, minlength=count).astype(float)
    rng = np.random.default_rng(SEED)
    drawn_R_S = rng.multinomial(seeds, np.full(seeds, 1 / seeds), resamples) / seeds
    drawn_R_C = rng.multinomial(count, np.full(count, 1 / count), resamples)
    means = np.einsum("rc,rc->r", drawn_R_S @ sums_S_C, drawn_R_C) / (drawn_R_C @ sizes_C)
    units = min(number for number in (seeds, count) if number > 1) if max(seeds, count) > 1 else 0
    if not units:
        return Difference(float(gaps.mean()), -1.0, 1.0, [float(gaps.mean())])
    tail = expanded_tail((1 - level) / 2, units)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Difference(float(gaps.mean()), float(low), float(high), [round(float(row.mean()), 4) for row in gaps])


@dataclass(frozen=True)
class Curve:
    """Success of the rollouts, mean over seeds, against what they cost so far; arrays [iterations]."""

    env_steps: np.ndarray
    generated_tokens: np.ndarray
    success: np.ndarray


def curve_of(results: Sequence[dict[str, Any]]) -> Curve:
    """Of an arm's cells. Success is a running mean of SMOOTH iterations, fewer at the beginning."""

    def mean(name: str) -> np.ndarray:
        return np.mean([[point[name] for point in one["curve"]] for one in results], axis=0)

    success = mean("success")
    smooth = np.array([success[max(0, at - SMOOTH + 1) : at + 1].mean() for at in range(len(success))])
    return Curve(np.cumsum(mean("env_steps")), np.cumsum(mean("generated_tokens")), smooth)


def reaches(at: np.ndarray, success: np.ndarray, target: float) -> float | None:
    """Where along `at` the success first is `target`, linear between iterations; None where it never is."""
    above = np.flatnonzero(success >= target - 1e-12)
    if not len(above):
        return None
    first = int(above[0])
    if first == 0:
        return float(at[0])
    part = (target - success[first - 1]) / (success[first] - success[first - 1])
    return float(at[first - 1] + part * (at[first] - at[first - 1]))


def steps_ratio(reference: Curve, other: Curve) -> tuple[float, bool]:
    """(environment steps the reference needs for its final success ÷ those the other needs for it, whether the other reaches it).

    Where it does not, its whole budget counts, and the ratio is an upper bound.
    """
    target = float(reference.success[-1])
    needed, others = reaches(reference.env_steps, reference.success, target), reaches(other.env_steps, other.success, target)
    assert needed is not None
    return round(needed / (others or float(other.env_steps[-1])), 3), others is not None


def spread_of(values: Sequence[float]) -> float | None:
    """p99 over median of gradient norms: how much longer the longest are than the usual ones; None where the usual one is 0."""
    found = np.asarray(values, float)
    middle = float(np.median(found))
    return round(float(np.quantile(found, 0.99)) / middle, 3) if middle else None
