"""Is this version worse than the champion? One verdict with its reasons, used by a run's decisions and by scheduled looks alike.

*Method.* Both played the same panel; the paired cluster bootstrap of ratchet/evaluation/compare.py gives the gain an interval whose
bounds each err with the look's share of the one-sided error alpha (ratchet/evaluation/promotion.py: equal shares of a known number of
rounds, 6 / (π k)² of an open one). By the union bound all looks together raise a false alarm with at most alpha, however much they
resemble each other. A stratum counts where it lost more than its limit *and* more than chance at the same share.
monitoring/regression_simulation.py measures both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ratchet.evaluation.promotion import is_itself, lost_strata
from ratchet.store.throughput import Record

BETTER, SAME, WORSE = "better", "same", "worse"
SPEEDS = {"decoding": "tokens_generated", "learning": "tokens_learned", "reading": "tokens_read"}
LEAST_S = 5.0  # of a phase: shorter ones are mostly start and noise
LEAST_EARLIER = 3  # runs that a speed is compared with


def judge(
    comparison: Mapping[str, Any],
    max_stratum_loss: float,
    *,
    gates: Mapping[str, Mapping[str, Any] | None] | None = None,
    speeds: Iterable[Mapping[str, Any]] = (),
    max_slowdown: float = 1.0,
    of_weights: bool = False,
) -> dict[str, Any]:
    """`{"verdict", "regression", "reasons", "tests"}` on a COMPARISON of champion (a) and version (b).

    `of_weights`: the question is what was learned, as in a round's decision, and a version is no worse than itself. A scheduled look asks
    whether the same version still does as well, because its environment may have changed.

    `verdict` is better, same or worse; `regression` is True where it is worse or lost a stratum. `tests` holds one entry a question:
    `{"name", "severity", "passed", "observed", "limit", "detail"}`; those of severity `warn` (calibration, speed) are reasons that
    change no verdict. `gates` holds what the gates of `meter` and `critic` said (None where there is none), `speeds` what `slowdowns`
    found. Raises RatchetError, through `compare`, long before this where the two played different panels.
    """
    gain = comparison["gain"]
    is_chance = of_weights and is_itself(comparison)
    lost = [] if is_chance else lost_strata(comparison, max_stratum_loss)
    tests = [
        _test("regression.success", gain["high"] >= 0 or is_chance, gain["mean"], 0.0, f"gain on {comparison['panel']}, at most {gain['high']:+.3f}"),
        *(_test(f"regression.stratum.{one['stratum']}", False, one["gain"], -max_stratum_loss, one["text"]) for one in lost),
    ]
    regression = any(not test["passed"] for test in tests)
    tests += [_gate(name, gate) for name, gate in sorted((gates or {}).items()) if gate is not None]
    tests += [_speed(one, max_slowdown) for one in speeds]
    reasons = [test["detail"] for test in tests if not test["passed"]]
    verdict = WORSE if regression else BETTER if gain["low"] > 0 and not is_chance else SAME
    return {"verdict": verdict, "regression": regression, "reasons": reasons or [f"{verdict}: {_gain(gain)}"], "tests": tests}


def _gain(gain: Mapping[str, float]) -> str:
    return f"gain {gain['mean']:+.3f}, between {gain['low']:+.3f} and {gain['high']:+.3f}"


def _test(name: str, passed: bool, observed: float | None, limit: float | None, detail: str, severity: str = "fail") -> dict[str, Any]:
    told = None if observed is None else round(float(observed), 6)
    return {"name": name, "severity": severity, "passed": bool(passed), "observed": told, "limit": limit, "detail": detail}


def _gate(name: str, gate: Mapping[str, Any]) -> dict[str, Any]:
    """Whether an instrument still measures: its own gate's verdict, with the gate's reasons."""
    verdict = gate.get("gate") or gate  # the meter's stands in a record of what was done
    passed = bool(verdict.get("passed", True))
    text = str(gate.get("reason") or ("its gate holds" if passed else "its gate is shut"))
    return _test(f"regression.{name}_calibration", passed, verdict.get("ece", verdict.get("rank_correlation")), None, f"{name}: {text}", "warn")


def slowdowns(now: Iterable[Record], earlier: Iterable[Record]) -> list[dict[str, Any]]:
    """How much slower each phase of each stage was than the median of earlier runs with the same settings on the same machine:
    `{"stage", "phase", "rate", "usual", "runs", "slowdown"}`, rates in tokens a second. Phases below LEAST_S and stages with fewer
    than LEAST_EARLIER runs to compare with are left out. Records are those of ratchet/store/throughput.py."""
    before: dict[tuple[Any, ...], list[float]] = {}
    for record in earlier:
        for phase, rate in _rates(record):
            before.setdefault((*_kind(record), phase), []).append(rate)
    found = []
    for record in now:
        for phase, rate in _rates(record):
            usual = before.get((*_kind(record), phase), [])
            if len(usual) >= LEAST_EARLIER:
                median = statistics.median(usual)
                one = {"stage": record["stage"], "phase": phase, "rate": rate, "usual": median, "runs": len(usual)}
                found.append(one | {"slowdown": 1 - rate / median})
    return found


def _kind(record: Record) -> tuple[Any, ...]:
    """What has to be the same for speeds to be compared; `evaluate@3` is compared with `evaluate@1`."""
    return record["stage"].partition("@")[0], record["params_hash"], record["machine"], record["threads"]


def _rates(record: Record) -> list[tuple[str, float]]:
    seconds, counts = record["seconds"], record["counts"]
    return [
        (phase, counts[tokens] / seconds[phase])
        for phase, tokens in SPEEDS.items()
        if seconds.get(phase, 0.0) >= LEAST_S and counts.get(tokens, 0) > 0
    ]


def _speed(one: Mapping[str, Any], limit: float) -> dict[str, Any]:
    name, slowdown = f"regression.speed.{one['stage']}.{one['phase']}", one["slowdown"]
    share = f"{100 * abs(slowdown):.0f} % {'below' if slowdown > 0 else 'above'} the median of {one['runs']} runs"
    return _test(name, slowdown <= limit, slowdown, limit, f"{one['stage']}: {one['phase']} at {one['rate']:.0f} tokens/s, {share}", "warn")
