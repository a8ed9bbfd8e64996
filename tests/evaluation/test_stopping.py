"""When rounds stop: the chance of a gain, the gates, and that only the best round on `select` is promoted."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.evaluation.promotion import KEPT, PROMOTED, REGRESSION, Verdict
from ratchet.evaluation.stopping import Limits, Measured, chance_of_gain, fired, jensen_shannon, judged, kept_by_select
from tests.evaluation.fabricate import broken, outcomes

LIMITS = Limits(min_gain=0.005, patience=2, min_ess=0.3, max_kl=0.1, max_td_ratio=1.5, max_action_shift=0.1)


def played(version: str, share: float, seed: int = 0) -> list[dict]:
    return outcomes(version, np.random.default_rng(seed).random(200) < share, panel="select")


def test_a_clear_gain_is_nearly_sure_and_the_same_version_gains_nothing() -> None:
    before, after = played("a", 0.3), played("b", 0.7)
    assert chance_of_gain(before, after, 0.005) > 0.99 and chance_of_gain(after, before, 0.005) < 0.01
    assert chance_of_gain(before, played("a", 0.3), 0.005) == 0.0
    assert chance_of_gain(before, after, 0.005) == chance_of_gain(before, after, 0.005)


def test_the_bootstrap_is_paired() -> None:
    """Three tasks more of 200, none lost: unpaired that would be nothing."""
    solved = np.random.default_rng(1).random(200) < 0.5
    more = solved.copy()
    more[np.flatnonzero(~solved)[:4]] = True
    assert chance_of_gain(outcomes("a", solved), outcomes("b", more), 0.005) > 0.9


def test_tasks_that_an_environment_broke_are_left_out() -> None:
    before, after = outcomes("a", [False] * 20), outcomes("b", [True] * 20)
    assert chance_of_gain([broken(row) for row in before], after, 0.0) == 0.0
    assert chance_of_gain([broken(before[0]), *before[1:]], after, 0.0) == 1.0


def test_rounds_stop_after_two_in_a_row_without_a_chance_and_a_good_one_begins_anew() -> None:
    first = judged(None, 0.2, [], LIMITS)
    assert first["misses"] == 1 and first["stop"] is None
    assert judged(first, 0.9, [], LIMITS)["misses"] == 0
    second = judged(first, 0.49, [], LIMITS)
    assert second["misses"] == 2 and second["stop"] == "2 rounds in a row had a chance below a half to gain more than 0.5 points on select"
    assert judged({"misses": 1}, 0.5, [], LIMITS)["stop"] is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Measured(ess=0.2), "the effective share of the offline update's ratios is 0.2, below 0.3"),
        (Measured(kl=0.3), "the divergence from the reference is 0.3, above 0.1 nats a token"),
        (Measured(td_ratio=1.6), "TD error on held-out tasks over that on fitted ones is 1.6, above 1.5"),
        (Measured(action_shift=0.2), "the shift of the mix of actions is 0.2, above 0.1 bits"),
    ],
)
def test_each_gate_fires_alone_and_stops_at_once(found: Measured, said: str) -> None:
    [reason] = fired(found, LIMITS)
    assert said in reason and judged(None, 1.0, [reason], LIMITS)["stop"] == reason


def test_what_was_not_measured_and_what_is_at_its_limit_fires_nothing() -> None:
    assert fired(Measured(), LIMITS) == []
    assert fired(Measured(ess=0.3, kl=0.1, td_ratio=1.5, action_shift=0.1), LIMITS) == []


def test_the_divergence_of_mixes_is_in_bits_and_symmetric() -> None:
    assert jensen_shannon(["go"], ["take"]) == pytest.approx(1.0) and jensen_shannon(["go", "take"], ["take", "go"]) == 0.0
    a, b = ["go"] * 3 + ["take"], ["go", "take", "open"]
    assert 0 < jensen_shannon(a, b) < 1 and jensen_shannon(a, b) == pytest.approx(jensen_shannon(b, a))
    assert jensen_shannon([], ["go"]) == 0.0


def test_only_the_best_round_on_select_goes_up_for_promotion() -> None:
    promoted, best = Verdict(True, PROMOTED, ["better"]), {"round": 1, "select": 0.6}
    kept = kept_by_select(promoted, 0.55, best)
    assert not kept.promoted and kept.event == KEPT and "round 1 did better on select (60.0 % against 55.0 %)" in kept.reasons[-1]
    assert kept_by_select(promoted, 0.6, best) == promoted
    worse = Verdict(False, REGRESSION, ["worse"])
    assert kept_by_select(worse, 0.1, best) == worse
