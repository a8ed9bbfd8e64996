from __future__ import annotations

import pytest

from ratchet.episodes.files import table_of
from ratchet.errors import RatchetError
from ratchet.evaluation.summary import summarise
from tests.evaluation.fabricate import broken, outcomes


def test_a_summary_counts_what_happened() -> None:
    found = summarise(outcomes("v", [True] * 6 + [False] * 3))
    assert (found["panel"], found["panel_hash"], found["n"], found["samples"], found["errors"]) == ("confirm", "h1", 9, 1, 0)
    assert found["success"]["mean"] == found["score"] == found["avg_at_k"] == found["pass_hat_k"] == pytest.approx(2 / 3)
    assert (found["steps"], found["tokens"], found["invalid_share"]) == (10, 40, pytest.approx(0.1))
    assert found["truncated_share"] == pytest.approx(1 / 3)
    assert {name: one["n"] for name, one in found["by_stratum"].items()} == {"clean": 3, "heat": 3, "pick": 3}


def test_an_environment_error_is_counted_and_never_a_failure() -> None:
    rows = outcomes("v", [True, True, True, False])
    rows[0] = broken(rows[0])
    found = summarise(rows)
    assert (found["n"], found["errors"]) == (3, 1)
    assert found["success"]["mean"] == found["score"] == pytest.approx(2 / 3)


def test_a_panel_of_errors_has_no_mean() -> None:
    found = summarise([broken(row) for row in outcomes("v", [True, False])])
    assert (found["n"], found["errors"], found["success"]["mean"], found["score"], found["steps"]) == (0, 2, None, None, None)


def test_samples_are_averaged_within_their_task() -> None:
    rows = outcomes("v", [True, False, True, True], samples=2)
    found = summarise(rows)
    assert (found["n"], found["samples"], found["success"]["mean"], found["pass_hat_k"]) == (2, 2, 0.75, 0.5)
    assert summarise(table_of("outcomes", rows[::-1])) == found


def test_mixed_versions_missing_results_and_no_rows_are_refused() -> None:
    with pytest.raises(RatchetError, match="mix version v and w"):
        summarise(outcomes("v", [True]) + outcomes("w", [True]))
    with pytest.raises(RatchetError, match="neither `solved` nor `error`"):
        summarise([outcomes("v", [True])[0] | {"solved": None}])
    with pytest.raises(RatchetError, match="no outcomes"):
        summarise([])
