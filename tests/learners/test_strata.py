"""Refusal skew: what learns from successes can be told to give each stratum its share of the tasks."""

import numpy as np

from ratchet.episodes.files import table_of
from ratchet.learners.strata import strata_of, stratum_factors


def test_each_stratums_mass_becomes_its_share_of_the_tasks_and_the_sum_stays() -> None:
    strata = ["act"] * 6 + ["idle"] * 2
    groups = ["a", "a", "b", "b", "c", "c", "d", "d"]
    mass = [8.0, 0, 0, 0, 0, 0, 40.0, 40.0]
    factors = stratum_factors(strata, groups, mass)
    after = {kind: sum(factors.get(one, 0) * own for one, own in zip(strata, mass, strict=True) if one == kind) for kind in ("act", "idle")}
    np.testing.assert_allclose([after["act"], after["idle"]], [0.75 * 88, 0.25 * 88])


def test_what_a_stratum_without_success_cannot_have_is_divided_in_proportion() -> None:
    strata, groups = ["a", "b", "b", "c"], ["1", "2", "3", "4"]
    factors = stratum_factors(strata, groups, [5.0, 5.0, 0.0, 0.0])
    assert set(factors) == {"a", "b"}
    np.testing.assert_allclose([5 * factors["a"], 5 * factors["b"]], [10 / 3, 20 / 3])
    assert stratum_factors(strata, groups, [0.0] * 4) == {}


def test_the_last_action_can_be_the_stratum_where_the_environment_names_none() -> None:
    steps = table_of("steps", [{"episode_id": one, "t": t, "action_type": kind} for one, t, kind in
                               (("e", 0, "look"), ("e", 1, "refuse"), ("f", 0, "refuse"), ("f", 1, "book"), ("g", 0, None))])
    rows = [{"episode_id": one, "stratum": "all"} for one in ("f", "e", "g")]
    assert strata_of(rows, steps, "last_action") == ["book", "refuse", ""]
    assert strata_of(rows, steps, "stratum") == ["all", "all", "all"]


def test_a_group_whose_episodes_end_differently_is_shared_among_strata() -> None:
    factors = stratum_factors(["refuse", "book", "refuse", "refuse"], ["1", "1", "2", "2"], [1.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose([3 * factors["refuse"], factors["book"]], [4 * 0.75, 4 * 0.25])
