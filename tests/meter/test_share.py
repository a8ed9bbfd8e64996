"""The bounded mean and the meter's credit: published vectors, what holds for any input, and what a perfect meter says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ratchet.credit.meter import Estimates, costs, deltas, masses, meter_credit
from ratchet.credit.share import beta_of, bounded_mean, mixed_share

FOLDER = Path(__file__).parents[1] / "vectors"
BOUNDED = json.loads((FOLDER / "bounded_mean.json").read_text())["cases"]
CREDIT = json.loads((FOLDER / "meter_credit.json").read_text())["cases"]


@pytest.mark.parametrize("case", BOUNDED)
def test_the_bounded_mean_equals_the_vectors(case: dict) -> None:
    np.testing.assert_allclose(bounded_mean(case["q"], case["n"], case["M"]), case["w"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CREDIT)
def test_credit_from_costs_equals_the_vectors(case: dict) -> None:
    c, n = np.array(case["c"], float), np.array(case["n"], float)
    held = c != case["C"]
    change = deltas(c, (held[:-1] & held[1:]).astype(float), n, case["delta"])
    q, w = meter_credit(change, n, case["advantage"], rho=case["rho"], cap=case["M"])
    np.testing.assert_allclose(q, case["q"], rtol=1e-9)
    np.testing.assert_allclose(w, case["w"], rtol=1e-9)
    np.testing.assert_allclose(case["advantage"] * w, case["step_advantage"], rtol=1e-9)


steps = st.lists(st.tuples(st.one_of(st.just(0.0), st.floats(1e-9, 1e4)), st.integers(0, 400)), min_size=1, max_size=24)


@settings(max_examples=150, deadline=None)
@given(steps, st.floats(1.0, 20.0), st.floats(0.0, 1.0), st.sampled_from(["density", "mass"]))
def test_the_token_weighted_mean_is_one_and_no_weight_is_above_the_cap_where_every_share_is_above_zero(found, cap, rho, form) -> None:
    mass, n = (np.array(column, float) for column in zip(*found, strict=True))
    q = mixed_share([(1.0, mass)], len(mass), rho)
    assert q.sum() == pytest.approx(1.0)
    w = bounded_mean(q, n, cap, form)
    assert np.all(w >= 0) and np.all(w[n == 0] == 1.0) and np.all(w[n > 0] <= cap * (1 + 1e-9))
    if n.sum() > 0:
        assert (n * w).sum() == pytest.approx(n.sum(), rel=1e-9)


def test_one_step_all_equal_and_a_cap_of_one_weigh_nothing() -> None:
    assert bounded_mean([1.0], [7], 5.0).tolist() == [1.0]
    np.testing.assert_allclose(bounded_mean([0.25] * 4, [3, 90, 1, 20], 5.0), 1.0)
    np.testing.assert_allclose(bounded_mean([0.9, 0.05, 0.05], [3, 90, 1], 1.0), 1.0)
    np.testing.assert_allclose(bounded_mean([0.2, 0.8], [0, 0], 5.0), 1.0)
    # a step without a token is out of the sums and still has its part of rho / T
    np.testing.assert_allclose(mixed_share([(1.0, np.array([0.0, 3.0]))], 2, 0.2), [0.1, 0.9])


def test_the_example_of_the_method_comes_out() -> None:
    q, w = meter_credit(np.array([0.0, 900.0, 30.0, 0.0]), np.array([100, 50, 300, 80]), 1.0)
    np.testing.assert_allclose(q, [0.05, 0.8242, 0.0758, 0.05], atol=5e-5)
    np.testing.assert_allclose(w, [0.441057, 5, 0.668699, 0.441057], atol=5e-7)


@pytest.mark.parametrize(("meter", "critic", "beta"), [(0.7, 0.6, 2 / 3), (0.7, 0.4, 1), (0.4, 0.9, 0), (0.5, 0.3, 0.5), (None, 0.9, 0.5), (0.9, None, 0.5)])
def test_beta_goes_by_what_each_is_above_chance(meter, critic, beta) -> None:
    assert beta_of(meter, critic) == pytest.approx(beta)


def test_a_source_without_mass_is_dropped_and_two_are_mixed_by_beta() -> None:
    meter, critic = np.array([0.0, 3.0, 1.0]), np.array([2.0, 0.0, 0.0])
    np.testing.assert_allclose(mixed_share([(0.25, meter), (0.75, critic)], 3, 0.0), [0.75, 0.1875, 0.0625])
    np.testing.assert_allclose(mixed_share([(0.25, meter), (0.75, 0 * critic)], 3, 0.2), mixed_share([(1.0, meter)], 3, 0.2))
    np.testing.assert_allclose(mixed_share([(0.25, 0 * meter), (0.75, 0 * critic)], 3, 0.2), 1 / 3)
    np.testing.assert_allclose(mixed_share([(1.0, meter), (0.0, critic)], 3, 0.2), mixed_share([(1.0, meter)], 3, 0.2))


def estimates(remaining: list[float | None], tokens: list[float], p: list[float] | None = None) -> Estimates:
    able = np.array([one is not None for one in remaining])
    values = np.array([np.nan if one is None else one for one in remaining], float)
    return Estimates(able, able.astype(float) if p is None else np.array(p), values, np.ones(len(able), bool), np.array(tokens, float))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.booleans(), st.sampled_from(["hard", "soft"]), st.sampled_from([50, 10_000]))
def test_a_perfect_meter_says_nothing_in_td(n, solved, cost, limit) -> None:
    """In a success it counts down exactly what is written, in a failure all is lost from the beginning."""
    to_go = list(np.cumsum(n[::-1])[::-1])
    found = estimates(to_go if solved else [None] * len(n), n)
    c, share = costs(found, limit, solved=solved, truncated=False, cost=cost)
    np.testing.assert_allclose(deltas(c, share, found.tokens, "td"), 0, atol=1e-9)
    assert meter_credit(deltas(c, share, found.tokens, "td"), n, 1.0)[1].tolist() == pytest.approx([1.0] * len(n))


def test_costs_are_estimates_or_the_limit_and_end_as_the_episode_did() -> None:
    found = estimates([400, None, 90], [10, 20, 30])
    c, share = costs(found, 300, solved=True, truncated=False)
    assert c.tolist() == [400, 300, 90, 0] and share.tolist() == [0, 0, 1]  # an estimate above C is an estimate
    c, share = costs(found, 300, solved=False, truncated=True)
    assert c.tolist() == [400, 300, 90, 300] and share.tolist() == [0, 0, 0]
    c, share = costs(found, 300, solved=False, truncated=True, terminal="meter")
    assert c.tolist() == [400, 300, 90, 90] and deltas(c, share, found.tokens, "td")[-1] == 0
    assert costs(found, 300, solved=False, truncated=False, terminal="meter")[0][-1] == 300  # the environment ended it
    soft, share = costs(estimates([400, 100, 90], [10, 20, 30], [0.5, 0.25, 1.0]), 1000, solved=True, truncated=False, cost="soft")
    assert soft.tolist() == [700, 775, 90, 0] and share.tolist() == [0.5, 0.25, 1.0]
    unparsable = Estimates(np.array([True]), np.array([0.9]), np.array([12.0]), np.array([False]), np.array([5.0]))
    assert costs(unparsable, 300, solved=True, truncated=False)[0].tolist() == [300, 0]


def test_progress_is_reversed_where_the_outcome_was_bad() -> None:
    change = np.array([5.0, -2.0, 0.0])
    assert masses(change, 1.0).tolist() == [5, 0, 0] and masses(change, -1.0).tolist() == [0, 2, 0]
    assert masses(change, -1.0, sign_reversal=False).tolist() == [5, 0, 0]
