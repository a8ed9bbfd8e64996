from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest

from ratchet.errors import RatchetError
from ratchet.evaluation.intervals import (
    avg_at_k,
    contracted_tail,
    expanded_tail,
    pass_hat_k,
    student_t_cdf,
    student_t_quantile,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(5, 10, 0.2366, 0.7634), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)],
)
def test_wilson_gives_published_intervals(successes: int, n: int, low: float, high: float) -> None:
    """The last two are the examples of Newcombe (1998), table I, method 3."""
    found = wilson(successes, n)
    assert found["mean"] == successes / n
    assert (found["low"], found["high"]) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_wilson_mirrors_and_narrows() -> None:
    a, b = wilson(3, 20), wilson(17, 20)
    assert a["low"] == pytest.approx(1 - b["high"]) and a["high"] == pytest.approx(1 - b["low"])
    assert wilson(30, 200)["high"] < a["high"] and wilson(3, 20, 0.8)["high"] < a["high"]


def test_wilson_without_tasks_knows_nothing_and_refuses_what_is_no_share() -> None:
    assert wilson(0, 0) == {"mean": None, "low": 0.0, "high": 1.0}
    for bad in [(3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0)]:
        with pytest.raises(RatchetError):
            wilson(*bad)


def test_pass_hat_k_is_the_share_of_subsets_that_are_all_solved() -> None:
    c, n, k = [0, 1, 3, 4], [4, 4, 4, 4], 2
    by_hand = np.mean([np.mean([all(i < won for i in pick) for pick in combinations(range(4), k)]) for won in c])
    assert pass_hat_k(c, n, k) == pytest.approx(by_hand) == pytest.approx(np.mean([comb(won, k) / comb(4, k) for won in c]))


def test_samples_of_a_task_are_averaged_before_tasks_are() -> None:
    assert avg_at_k([1, 1], [4, 1]) == pytest.approx((0.25 + 1) / 2)
    assert avg_at_k([0, 1], [0, 1]) == 1.0 and avg_at_k([0], [0]) is None
    assert pass_hat_k([1, 2], [1, 2], 2) == 1.0 and pass_hat_k([1], [1], 2) is None


@pytest.mark.parametrize(("df", "quantile"), [(1, 12.7062), (2, 4.3027), (5, 2.5706), (11, 2.2010), (23, 2.0687), (100, 1.9840)])
def test_student_t_has_the_values_of_the_tables(df: int, quantile: float) -> None:
    assert student_t_quantile(0.975, df) == pytest.approx(quantile, abs=1e-4)
    assert student_t_cdf(-quantile, df) == pytest.approx(0.025, abs=1e-5)


def test_few_clusters_widen_and_many_do_not() -> None:
    assert expanded_tail(0.025, 12) < expanded_tail(0.025, 24) < expanded_tail(0.025, 2000) == pytest.approx(0.025, abs=2e-4)
    assert contracted_tail(expanded_tail(0.025, 12), 12) == pytest.approx(0.025)
