from __future__ import annotations

import numpy as np
import pytest

from ratchet.errors import RatchetError
from ratchet.evaluation.compare import bootstrap, compare
from ratchet.evaluation.intervals import wilson
from tests.evaluation.fabricate import broken, outcomes

RNG = np.random.default_rng(0)
A, B = RNG.random(240) < 0.5, RNG.random(240) < 0.6
FAST = {"resamples": 2000}


def test_a_comparison_says_what_both_did_and_who_flipped() -> None:
    found = compare(outcomes("a", A), outcomes("b", B), **FAST)
    assert found["a"] == {"version": "a", "success": wilson(int(A.sum()), 240)} and found["b"]["version"] == "b"
    assert found["gain"]["mean"] == pytest.approx(B.mean() - A.mean())
    assert found["gain"]["low"] < found["gain"]["mean"] < found["gain"]["high"]
    assert found["flips"]["gained"] == [f"task-{i:04d}" for i in np.flatnonzero(B & ~A)]
    assert found["flips"]["lost"] == [f"task-{i:04d}" for i in np.flatnonzero(A & ~B)]
    assert (found["n"], found["clusters"], found["level"], found["panel_hash"]) == (240, 12, 0.95, "h1")
    for i, name in enumerate(("pick", "clean", "heat")):
        assert found["by_stratum"][name]["gain"]["mean"] == pytest.approx(B[i::3].mean() - A[i::3].mean())
        assert found["by_stratum"][name]["n"] == 80


def test_swapping_the_versions_negates_the_gain() -> None:
    there, back = compare(outcomes("a", A), outcomes("b", B), **FAST), compare(outcomes("b", B), outcomes("a", A), **FAST)
    pairs = [(there["gain"], back["gain"])] + [(there["by_stratum"][s]["gain"], back["by_stratum"][s]["gain"]) for s in there["by_stratum"]]
    for one, other in pairs:
        assert [one["low"], one["mean"], one["high"]] == pytest.approx([-other["high"], -other["mean"], -other["low"]])
    assert there["flips"]["gained"] == back["flips"]["lost"]


def test_the_order_of_rows_changes_nothing_and_neither_does_a_second_call() -> None:
    rows = outcomes("b", B)
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    first = compare(outcomes("a", A), rows, **FAST)
    assert first == compare(outcomes("a", A), rows, **FAST) == compare(outcomes("a", A), shuffled, **FAST)


def test_a_version_against_itself_gains_exactly_nothing() -> None:
    found = compare(outcomes("a", A), outcomes("a", A), **FAST)
    assert found["gain"] == {"mean": 0.0, "low": 0.0, "high": 0.0} and found["p_not_better"] == 1.0


def test_different_panels_and_different_tasks_are_refused() -> None:
    with pytest.raises(RatchetError, match="different tasks cannot be compared"):
        compare(outcomes("a", A), outcomes("b", B, panel_hash="h2"))
    with pytest.raises(RatchetError, match="did not play the same tasks.*1 differ, first task-0239"):
        compare(outcomes("a", A), outcomes("b", B[:-1]))


def test_tasks_that_broke_for_either_are_left_out_and_counted() -> None:
    a, b = outcomes("a", A), outcomes("b", B)
    a[0], b[1] = broken(a[0]), broken(b[1])
    found = compare(a, b, **FAST)
    assert (found["n"], found["errors"]) == (238, 2)
    assert found["gain"]["mean"] == pytest.approx(B[2:].mean() - A[2:].mean())
    with pytest.raises(RatchetError, match="no task"):
        compare([broken(row) for row in a], b)


def test_pairing_narrows_the_interval_of_versions_that_agree() -> None:
    better = A.copy()
    better[np.flatnonzero(~A)[:24]] = True
    gain = compare(outcomes("a", A), outcomes("b", better), **FAST)["gain"]
    assert gain["low"] > 0 and gain["high"] - gain["low"] < 0.12  # unpaired: about 0.18


def test_a_gain_on_one_scene_alone_is_not_shown() -> None:
    better = A.copy()
    better[::12] = True
    assert compare(outcomes("a", A), outcomes("b", better), **FAST)["gain"]["low"] <= 0


def test_one_cluster_says_nothing_and_five_cannot_reach_a_fortieth() -> None:
    nothing, everything = np.zeros(60, bool), np.ones(60, bool)
    one = compare(outcomes("a", nothing, clusters=1), outcomes("b", everything, clusters=1), **FAST)
    assert (one["gain"]["low"], one["gain"]["high"], one["p_not_better"]) == (-1, 1, 1)
    assert compare(outcomes("a", nothing, clusters=5), outcomes("b", everything, clusters=5), **FAST)["gain"]["low"] == 0
    six = compare(outcomes("a", nothing, clusters=6), outcomes("b", everything, clusters=6), **FAST)
    assert six["gain"]["low"] > 0 and six["p_not_better"] == pytest.approx(1 / 64)


def test_a_small_error_draws_more_resamples_and_says_so() -> None:
    assert compare(outcomes("a", A), outcomes("b", B), resamples=100)["resamples"] > 100
    wide, narrow = (compare(outcomes("a", A), outcomes("b", B), level=level, **FAST)["gain"] for level in (0.98, 0.8))
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def test_the_p_value_and_the_interval_tell_the_same() -> None:
    gaps, clusters = np.where(np.arange(240) % 7 == 0, -1.0, np.where(np.arange(240) % 4 == 0, 1.0, 0.0)), np.arange(240) % 12
    p = bootstrap(gaps, clusters, 0.025, 20_000, 1).p_not_better
    assert bootstrap(gaps, clusters, p * 1.3, 20_000, 1).low > 0 >= bootstrap(gaps, clusters, p / 1.3, 20_000, 1).low - 1e-12


def test_intervals_cover_the_truth_though_tasks_of_a_scene_move_together() -> None:
    """Scenes differ in gain; a task bootstrap covers about 75 % here, a plain cluster percentile interval 90 %."""
    rng, covered, runs = np.random.default_rng(2), 0, 400
    clusters = np.arange(240) % 12
    for i in range(runs):
        up = np.clip(0.15 + rng.normal(0, 0.1, 12), 0, 0.5)[clusters]
        gaps = (rng.random(240) < up).astype(float) - (rng.random(240) < 0.15)
        gain = bootstrap(gaps, clusters, 0.025, 1000, i)
        covered += gain.low <= 0.0056 <= gain.high  # E[clip(N(.15, .1), 0, .5)] − .15 with both terms independent
    assert 0.92 <= covered / runs <= 0.985
