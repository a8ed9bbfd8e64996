"""The arithmetic behind the benchmarks' figures."""

from __future__ import annotations

import pytest

from benchmarks import iteration
from benchmarks.iteration import check_same_work
from benchmarks.peers.figures import last_over_first_third, mean_interval, padding_share, ratio, slope, summary
from benchmarks.peers.learner import synthetic
from benchmarks.peers.spec import Iteration
from benchmarks.scaling import FULL, points
from ratchet.errors import RatchetError
from ratchet.learners.batches import REPLY


def test_a_speedup_is_their_median_over_ours() -> None:
    assert ratio([10.0, 30.0, 11.0], [5.0, 6.0, 4.0]) == 2.2


def test_a_summary_tells_the_spread_as_a_share_of_the_median() -> None:
    assert summary([2.0, 1.0, 4.0]) == {"median": 2.0, "least": 1.0, "most": 4.0, "spread": 1.5, "n": 3}


def test_a_power_law_has_its_exponent_as_slope() -> None:
    assert slope([16, 64, 256], [3 * n**1.25 for n in (16, 64, 256)]) == 1.25
    assert slope([16, 64, 256], [7.0, 7.0, 7.0]) == 0


def test_thirds_are_the_first_and_the_last_turns() -> None:
    assert last_over_first_third([1, 1, 9, 9, 2, 4]) == 3.0
    assert last_over_first_third([2.0]) == 1.0


def test_one_slow_turn_of_one_rollout_says_nothing_about_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration, "in_process", lambda side, spec: {"turn_s": [[1.0] * 6, [1.0] * 6, [1.0] * 5 + [100.0]][: spec.iterations]})
    assert iteration.turn_seconds(Iteration("", 7, 1, 1), 3) == [1.0] * 6


def test_padding_is_what_was_computed_beyond_the_real_tokens() -> None:
    assert padding_share(1000, 970) == 0.03
    assert padding_share(990, 1000) == 0.0


@pytest.mark.parametrize("computed", [0, 500])
def test_tokens_that_were_not_counted_are_no_saving(computed: int) -> None:
    with pytest.raises(ValueError, match="not counted"):
        padding_share(computed, 1000)


def test_an_interval_over_seeds_holds_the_mean_and_is_the_same_each_time() -> None:
    values = [0.1, -0.05, 0.02, 0.0, 0.04]
    mean, low, high = mean_interval(values)
    assert mean == 0.022 and -0.05 < low < 0.022 < high < 0.1
    assert mean_interval(values) == (mean, low, high)
    assert mean_interval([0.25] * 3) == (0.25, 0.25, 0.25)


def work(turns: int, read: int, written: int) -> list[dict]:
    return [{"iterations": [{"turns": turns, "tokens_read": read, "tokens_written": written}]}]


def test_sides_that_did_not_do_the_same_work_are_not_compared() -> None:
    check_same_work({"ours": work(60, 3000, 600), "trl_side": work(60, 3000, 590)}, 0.03)
    for other in (work(59, 3000, 600), work(60, 2800, 600), work(60, 3000, 560)):
        with pytest.raises(RatchetError, match="no comparison"):
            check_same_work({"ours": work(60, 3000, 600), "trl_side": other}, 0.03)


def test_a_point_that_two_fits_share_is_measured_once() -> None:
    assert len(points(FULL)) == len(set(points(FULL))) == 6


def test_synthetic_episodes_have_the_lengths_asked_for_and_turns_of_sixty_tokens() -> None:
    episodes = synthetic(5, (90, 150), vocab=50)
    assert [len(one.ids) for one in episodes] == [90, 105, 120, 135, 150]
    assert episodes[2].n_reply == 20 and (episodes[2].role[50:60] == REPLY).all()
    assert len(episodes[0].advantages) == 2
