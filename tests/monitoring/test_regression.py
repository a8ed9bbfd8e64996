"""One verdict with its reasons; false alarms stay within what is spent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from monitoring.regression import BETTER, SAME, WORSE, judge, slowdowns
from monitoring.regression_simulation import World, simulate
from ratchet.errors import RatchetError
from ratchet.evaluation.compare import compare
from ratchet.evaluation.promotion import KEPT, PROMOTED, REGRESSION, Verdict, kept_by_drift, open_spending
from tests.evaluation.fabricate import outcomes
from tests.evaluation.test_promotion import comparison


def failed(found: dict[str, Any]) -> list[str]:
    return [test["name"] for test in found["tests"] if not test["passed"]]


@pytest.mark.parametrize(("low", "high", "verdict"), [(0.01, 0.1, BETTER), (-0.05, 0.1, SAME), (-0.1, 0.0, SAME), (-0.1, -0.01, WORSE)])
def test_a_version_is_better_the_same_or_worse(low: float, high: float, verdict: str) -> None:
    found = judge(comparison(low, high), 0.15)
    assert found["verdict"] == verdict and found["regression"] is (verdict == WORSE) and found["reasons"]
    assert failed(found) == (["regression.success"] if verdict == WORSE else [])


def test_a_stratum_that_lost_is_a_regression_by_its_name() -> None:
    found = judge(comparison(0.01, 0.1, heat=(-0.3, -0.1), pick=(-0.3, 0.1)), 0.15)
    assert found["regression"] and found["verdict"] == WORSE and failed(found) == ["regression.stratum.heat"] and "heat lost 0.300" in found["reasons"][0]


def test_a_rounds_version_is_no_worse_than_itself_but_a_look_says_what_it_sees() -> None:
    """A look plays the same weights again, in an environment that may have changed."""
    for found in (comparison(-0.1, -0.01, ("a", "a")), comparison(-0.1, 0.1, ("a", "a"), heat=(-0.3, -0.1))):
        assert judge(found, 0.15)["verdict"] == WORSE
        learned = judge(found, 0.15, of_weights=True)
        assert (learned["verdict"], learned["regression"], failed(learned)) == (SAME, False, [])
    assert judge(comparison(0.01, 0.1, ("a", "a")), 0.15, of_weights=True)["verdict"] == SAME
    assert judge(comparison(-0.1, -0.01), 0.15, of_weights=True)["verdict"] == WORSE


def test_a_reference_of_another_panel_is_refused() -> None:
    with pytest.raises(RatchetError, match="different tasks cannot be compared"):
        compare(outcomes("a", [True] * 24), outcomes("b", [True] * 24, panel_hash="h2"))


def test_gates_that_are_shut_are_reasons_and_no_regression() -> None:
    meter = {"reason": "ECE 0.31 above 0.15", "gate": {"passed": False, "ece": 0.31}}
    found = judge(comparison(-0.05, 0.1), 0.15, gates={"meter": meter, "critic": {"passed": True, "rank_correlation": 0.4}})
    assert not found["regression"] and failed(found) == ["regression.meter_calibration"] and found["reasons"] == ["meter: ECE 0.31 above 0.15"]
    assert judge(comparison(-0.05, 0.1), 0.15, gates={"meter": None, "critic": None})["tests"][1:] == []


def record(rate: float, stage: str = "evaluate@1", machine: str = "one", seconds: float = 20.0) -> dict[str, Any]:
    return {"stage": stage, "params_hash": "p", "machine": machine, "threads": 1, "seconds": {"decoding": seconds}, "counts": {"tokens_generated": rate * seconds}}


def test_a_stage_that_became_slower_is_told_against_the_median_of_its_own_past() -> None:
    earlier = [record(rate, f"evaluate@{k}") for k, rate in enumerate((900, 1000, 1100))] + [record(9000, machine="two")] * 5
    (one,) = slowdowns([record(500, "evaluate@4")], earlier)
    assert one["slowdown"] == pytest.approx(0.5) and one["runs"] == 3
    found = judge(comparison(-0.05, 0.1), 0.15, speeds=[one], max_slowdown=0.3)
    assert failed(found) == ["regression.speed.evaluate@4.decoding"] and "50 % below the median of 3 runs" in found["reasons"][0]
    assert not failed(judge(comparison(-0.05, 0.1), 0.15, speeds=slowdowns([record(800)], earlier), max_slowdown=0.3))
    assert slowdowns([record(1)], earlier[:2]) == [] and slowdowns([record(1, seconds=1.0)], earlier) == []


def test_what_all_looks_spend_is_alpha_however_many_there_are() -> None:
    spent = [open_spending(0.05, k) for k in range(1, 2000)]
    assert sum(spent) < 0.05 and sum(spent) == pytest.approx(0.05, rel=1e-3) and spent == sorted(spent, reverse=True)
    assert math.isclose(spent[0], 0.0304, rel_tol=1e-2)
    with pytest.raises(RatchetError, match="count from 1"):
        open_spending(0.05, 0)


def test_a_version_that_drifted_too_far_is_not_promoted_whatever_it_gained() -> None:
    better, worse = Verdict(True, PROMOTED, ["gained"]), Verdict(False, REGRESSION, ["lost"])
    kept = kept_by_drift(better, ["drift.action_types"])
    assert (kept.promoted, kept.event) == (False, KEPT) and "drift.action_types" in kept.reasons[-1] and "waive" in kept.reasons[-1]
    assert kept_by_drift(better, []) is better and kept_by_drift(worse, ["drift.kl"]).event == REGRESSION


def test_rounds_without_change_are_hardly_ever_promoted_and_hardly_ever_an_alarm() -> None:
    small = World(tasks=120, resamples=300)
    nothing = simulate(4, 25, world=small)
    assert nothing.promotions <= 0.2 and nothing.alarms <= 0.2  # alpha is 0.05 of 4 rounds; 25 runs show 0.2 at the most
    lost = simulate(1, 12, gain=-0.25, world=small)
    gained = simulate(1, 12, gain=0.25, world=small)
    assert lost.alarms >= 0.7 and lost.promotions == 0 and gained.promotions >= 0.6
    assert np.isclose(simulate(1, 3, world=small, seed=2).alarms, simulate(1, 3, world=small, seed=2).alarms)
