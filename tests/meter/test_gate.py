"""The four tests of a meter, and when each of them shuts its gate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ratchet.meter.gate import cross_fitted, expected_calibration_error, fit_temperature, judge, reliability, said

LIMITS = SimpleNamespace(enforce=True, max_ece=0.15, min_sign_accuracy=0.52, max_unparsable=0.02)


def good(**changes: Any) -> dict[str, Any]:
    able = np.array([True] * 6 + [False] * 4)
    given: dict[str, Any] = {
        "completable": able.copy(), "p": np.where(able, 0.9, 0.1), "able": able, "changes": [np.array([5.0, -4.0, 1.0])],
        "exact": [np.array([1, -1, 0])], "source": "exact", "unparsable": 0.0, "limits": LIMITS,
    }  # fmt: skip
    return judge(**{**given, **changes})


def test_a_good_meter_passes_and_each_fault_shuts_the_gate_by_its_name() -> None:
    assert good()["passed"] and good()["sign"]["signed_balanced_accuracy"] == 1.0 and said(good()) == "its gate is open"
    faults = {
        "accuracy above the majority class": {"completable": np.ones(10, bool)},
        "calibration error": {"p": np.where(np.arange(10) < 6, 0.6, 0.4)},
        "direction of steps (exact)": {"changes": [np.array([-5.0, 4.0, 1.0])]},
        "answers that do not parse": {"unparsable": 0.03},
    }
    for name, change in faults.items():
        verdict = good(**change)
        assert verdict["failed"] == [name] and name in said(verdict)


def test_what_cannot_be_tested_is_told_and_passed() -> None:
    verdict = good(exact=[None], source=None)
    assert verdict["passed"] and verdict["sign"] is None and said(verdict) == "its gate is open; not tested: direction of steps (no exact labels)"
    one_class = good(able=np.ones(10, bool), completable=np.ones(10, bool))
    assert one_class["passed"] and one_class["ece"] is None and one_class["majority"] == 1.0


def test_nothing_asked_and_one_class_got_wrong_shut_the_gate() -> None:
    none = np.zeros(0, bool)
    nothing = good(able=none, completable=none, p=np.zeros(0), changes=[], exact=[], source=None)
    assert nothing["failed"] == ["prefixes that could be asked about"]
    wrong = good(able=np.ones(10, bool), completable=np.arange(10) < 4)
    assert wrong["failed"] == ["accuracy above the majority class"]


def test_the_temperature_mends_a_meter_that_is_too_sure() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(0, 1.5, 4000)
    able = rng.random(4000) < 1 / (1 + np.exp(-true))
    assert fit_temperature(4 * true, able) == pytest.approx(4, rel=0.15)
    half = np.arange(4000) % 2 == 0
    sure, mended = 1 / (1 + np.exp(-4 * true)), cross_fitted(4 * true, able, half)
    assert expected_calibration_error(mended, able) < 0.04 < 0.1 < expected_calibration_error(sure, able)
    assert sum(one["n"] for one in reliability(mended, able)) == 4000
    assert fit_temperature(true[:5], np.ones(5, bool)) == 1.0
