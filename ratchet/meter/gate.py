"""Does a meter deserve trust? Looked at on episodes that it has not seen, every round (methods §3).

Legend: P prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ratchet.credit.meter import Cost, Delta, Estimates, Terminal, costs, deltas
from ratchet.evaluation.step_quality import step_quality
from ratchet.meter.labels import Labelled

BINS = 10
ONE_CLASS = 0.5  # least accuracy where all labels are of one class


class Limits(Protocol):
    """`fit_meter.gate`."""

    enforce: bool
    max_ece: float
    min_sign_accuracy: float
    max_unparsable: float


def fit_temperature(logit: np.ndarray, able: np.ndarray) -> float:
    """The temperature T for which sigmoid(logit / T) has the least log-loss; float64 [P] each. By a grid in log T from 1/20 to 20."""
    if not len(logit) or able.all() or not able.any():
        return 1.0
    grid = np.exp(np.linspace(-3, 3, 121))
    signed = np.where(able, logit, -logit)
    losses = [np.logaddexp(0, -signed / one).mean() for one in grid]
    return float(grid[int(np.argmin(losses))])


def reliability(p: np.ndarray, able: np.ndarray) -> list[dict[str, float]]:
    """How often what was given a probability was so: equally wide bins that hold anything."""
    place = np.minimum((p * BINS).astype(int), BINS - 1)
    return [
        {"low": one / BINS, "high": (one + 1) / BINS, "n": int((place == one).sum()), "said": float(p[place == one].mean()), "was": float(able[place == one].mean())}
        for one in range(BINS)
        if np.any(place == one)
    ]


def expected_calibration_error(p: np.ndarray, able: np.ndarray) -> float:
    """Mean over prefixes of |said − was| of their bin."""
    return float(sum(one["n"] * abs(one["said"] - one["was"]) for one in reliability(p, able)) / max(len(p), 1))


def cross_fitted(logit: np.ndarray, able: np.ndarray, half: np.ndarray) -> np.ndarray:
    """p̂ [P] of each half by the temperature that the other half gives: it is judged by what it was not fitted on."""
    p = np.empty(len(logit))
    for side in (False, True):
        mine = half == side
        temperature = fit_temperature(logit[~mine], able[~mine])
        p[mine] = 1 / (1 + np.exp(-np.clip(logit[mine] / temperature, -60, 60)))
    return p


def step_deltas(
    estimates: Sequence[Estimates], labels: Sequence[Labelled], limit: float, *, delta: Delta, cost: Cost, terminal: Terminal
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(costs [T + 1], Δ [T]) of each episode."""
    found = [costs(one, limit, solved=label.solved, truncated=label.truncated, cost=cost, terminal=terminal) for one, label in zip(estimates, labels, strict=True)]
    return [c for c, _ in found], [deltas(c, share, one.tokens, delta) for (c, share), one in zip(found, estimates, strict=True)]


def judge(
    *,
    completable: np.ndarray,
    p: np.ndarray,
    able: np.ndarray,
    changes: Sequence[np.ndarray],
    exact: Sequence[np.ndarray | None],
    source: str | None,
    unparsable: float,
    limits: Limits,
) -> dict[str, Any]:
    """The four tests. `completable`, `p`, `able` [P]: b̂, p̂ and b of all prefixes that were asked; `changes` and `exact`: Δ and exact
    labels of each episode; `unparsable`: share of freely written answers that did not parse.

    A test that cannot be made for want of exact labels, or of calibration for want of both classes, is told and passed. Of one class the
    verdicts have to be right for half of the prefixes [ours], since none can be above the majority class. Where nothing was asked at all
    (no held-out episode, or none that fits into the meter's context), nothing can be trusted.
    """
    majority = float(max(able.mean(), 1 - able.mean())) if len(able) else None
    accuracy = float(np.mean(completable == able)) if len(able) else None
    one_class = majority is None or majority == 1.0
    right = accuracy is None or majority is None or (accuracy >= ONE_CLASS if one_class else accuracy > majority)
    known = [(change, label) for change, label in zip(changes, exact, strict=True) if label is not None]
    sign = step_quality(*(np.concatenate(part) for part in zip(*known, strict=True))) if known else None
    sign_accuracy = None if sign is None else sign["signed_balanced_accuracy"]
    ece = None if one_class else expected_calibration_error(p, able)
    tests = [
        _test("prefixes that could be asked about", float(len(able)), 1.0, len(able) > 0),
        _test("accuracy above the majority class", accuracy, ONE_CLASS if majority == 1.0 else majority, right),
        _test("calibration error", ece, limits.max_ece, ece is None or ece <= limits.max_ece),
        _test(
            f"direction of steps ({source or 'no exact labels'})", sign_accuracy, limits.min_sign_accuracy,
            sign_accuracy is None or sign_accuracy >= limits.min_sign_accuracy,
        ),
        _test("answers that do not parse", unparsable, limits.max_unparsable, unparsable <= limits.max_unparsable),
    ]  # fmt: skip
    failed = [one["name"] for one in tests if not one["passed"]]
    return {
        "passed": not failed,
        "enforced": limits.enforce,
        "failed": failed,
        "tests": tests,
        "prefixes": len(able),
        "accuracy": accuracy,
        "majority": majority,
        "ece": ece,
        "reliability": reliability(p, able),
        "sign": None if sign is None else {"source": source, **sign},
        "unparsable": unparsable,
    }


def _test(name: str, observed: float | None, limit: float | None, passed: bool) -> dict[str, Any]:
    return {"name": name, "observed": observed, "limit": limit, "passed": bool(passed)}


def said(verdict: Mapping[str, Any]) -> str:
    """A verdict in a line."""
    missing = [one["name"] for one in verdict["tests"] if one["observed"] is None]
    told = [f"{one['name']} {one['observed']:.3f} (limit {one['limit']:.3f})" for one in verdict["tests"] if not one["passed"] and one["observed"] is not None]
    untested = f"; not tested: {', '.join(missing)}" if missing else ""
    return ("its gate is open" if verdict["passed"] else f"it fails its gate: {'; '.join(told)}") + untested
