"""Estimators that give all steps of an episode one outcome, or modulate it: RLOO, DAPO, EMPG; and what every estimator owes."""

from typing import Any

import numpy as np
import pytest

from ratchet.credit import ESTIMATORS
from ratchet.credit.batch import Batch
from ratchet.credit.dapo import dapo, overlong_penalty
from ratchet.credit.empg import empg, modulated
from ratchet.credit.grpo import grpo
from ratchet.credit.rloo import leave_one_out, rloo
from ratchet.errors import RatchetError
from ratchet.settings_online import PUBLISHED, Dapo, Empg, Gigpo, Hgpo


def batch(rewards: list[float], groups: list[str], n_steps: list[int], **known: Any) -> Batch:
    rng = np.random.default_rng(0)
    whole: dict[str, Any] = {
        "step_rewards": [np.append(np.zeros(steps - 1), reward) for reward, steps in zip(rewards, n_steps, strict=True)],
        "observations": [[f"o{t}" for t in range(steps)] for steps in n_steps],
        "entropy": [rng.uniform(0, 2, steps) for steps in n_steps],
        "n_tokens": [4 * steps for steps in n_steps],
        "length": [10 * steps for steps in n_steps],
        "max_length": 100,
    }
    return Batch(rewards, groups, n_steps, **{**whole, **known})


@pytest.mark.parametrize("name", ESTIMATORS)
def test_groups_without_spread_and_groups_of_one_are_exactly_zero_and_silent(name: str) -> None:
    one = batch([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0], ["a", "a", "b", "b", "c", "c", "d"], [2, 3, 2, 2, 2, 2, 3])
    advantages, silent = ESTIMATORS[name](one, PUBLISHED.get(name))
    assert [len(values) for values in advantages] == list(one.n_steps) and all(values.dtype == np.float32 for values in advantages)
    assert silent.tolist() == [False, False, True, True, True, True, True]
    assert not any(values.any() for values, quiet in zip(advantages, silent, strict=True) if quiet)
    assert all(values.any() for values, quiet in zip(advantages, silent, strict=True) if not quiet)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_batch_in_which_nothing_differs_is_silent_as_a_whole(name: str) -> None:
    advantages, silent = ESTIMATORS[name](batch([0.0] * 4, ["a", "a", "b", "b"], [1, 2, 3, 4]), PUBLISHED.get(name))
    assert silent.all() and not any(values.any() for values in advantages)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_advantages_follow_their_episode_wherever_it_stands(name: str) -> None:
    rewards, groups, steps = [1.0, 0.0, 0.0, 1.0, 0.5], ["a", "a", "b", "b", "b"], [2, 3, 1, 4, 2]
    entropy = [np.linspace(0.1, 1 + index, n) for index, n in enumerate(steps)]
    order = [3, 0, 4, 2, 1]
    plain, _ = ESTIMATORS[name](batch(rewards, groups, steps, entropy=entropy), PUBLISHED.get(name))
    moved = [[values[index] for index in order] for values in (rewards, groups, steps)]
    other, _ = ESTIMATORS[name](batch(*moved, entropy=[entropy[index] for index in order]), PUBLISHED.get(name))  # type: ignore[arg-type]
    for place, index in enumerate(order):
        np.testing.assert_allclose(other[place], plain[index], rtol=1e-6, atol=1e-7)


def test_rloo_compares_with_the_others_and_keeps_the_scale_of_rewards() -> None:
    np.testing.assert_allclose(leave_one_out([1.0, 0.0, 0.0]), [1.0, -0.5, -0.5])
    found, _ = rloo(batch([1.0, 0.0, 0.0, 10.0, 0.0], ["a", "a", "a", "b", "b"], [1, 1, 1, 2, 1]))
    assert found[3].tolist() == [10.0, 10.0] and found[4].tolist() == [-10.0]


def test_the_overlong_penalty_falls_from_0_to_minus_1_over_the_buffer() -> None:
    assert overlong_penalty([10, 80, 90, 100], 100, 20).tolist() == [0.0, 0.0, -0.5, -1.0]


def test_dapo_prefers_the_shorter_of_two_successes_and_learns_nothing_from_length_alone() -> None:
    rewards, groups = [1.0, 1.0, 0.0, 0.0, 0.0], ["a", "a", "a", "b", "b"]
    lengths = {"length": [10, 95, 10, 10, 95]}
    found, silent = dapo(batch(rewards, groups, [1] * 5, **lengths), Dapo(batches=10, overlong_buffer=0.2))
    assert found[0] > found[1] > found[2] and silent.tolist() == [False] * 3 + [True] * 2 and not found[3].any() and not found[4].any()
    without, _ = dapo(batch(rewards, groups, [1] * 5, **lengths), Dapo(batches=10, overlong_buffer=0.0))
    assert [values.tolist() for values in without] == [values.tolist() for values in grpo(batch(rewards, groups, [1] * 5))[0]]


def test_empg_by_hand() -> None:
    """H is 0, 1, .5, .5 after scaling; g = exp(−H) over its mean; the step before the last gets what exp(−H) of the last promises."""
    found = modulated([np.array([1.0, 1.0]), np.array([-1.0, -1.0])], [np.array([1.0, 3.0]), np.array([2.0, 2.0])], Empg(k=1.0, k_next=1.0, zeta=0.05))
    g = np.exp(-np.array([0, 1, 0.5, 0.5]))
    g /= g.mean()
    plain = np.array([1, 1, -1, -1]) * g + 0.05 * np.array([np.exp(-1), 0, np.exp(-0.5), 0])
    np.testing.assert_allclose(np.concatenate(found), plain - plain.mean(), rtol=1e-12)
    assert abs(np.concatenate(found).mean()) < 1e-12


def test_empg_weighs_sure_steps_more_and_a_group_without_spread_moves_nothing() -> None:
    loud = {"entropy": [np.array([0.1, 2.0]), np.array([0.1, 2.0])]}
    found, _ = empg(batch([1.0, 0.0], ["a", "a"], [2, 2], **loud), PUBLISHED["empg"])  # type: ignore[arg-type]
    assert found[0][0] > found[0][1] > 0 and found[1][0] < 0
    more = {"entropy": [*loud["entropy"], np.array([9.0, 0.0]), np.array([5.0, 5.0])]}
    again, silent = empg(batch([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"], [2, 2, 2, 2], **more), PUBLISHED["empg"])  # type: ignore[arg-type]
    assert [values.tolist() for values in again[:2]] == [values.tolist() for values in found] and silent.tolist() == [False, False, True, True]


def test_empg_leaves_a_step_without_a_token_out() -> None:
    found = modulated([np.ones(2), -np.ones(2)], [np.array([np.nan, 1.0]), np.array([0.5, 0.7])], PUBLISHED["empg"])  # type: ignore[arg-type]
    assert found[0][0] == 0 and np.isfinite(np.concatenate(found)).all()
    assert abs(np.concatenate([found[0][1:], found[1]]).mean()) < 1e-12


def test_empg_without_entropies_says_what_to_do() -> None:
    with pytest.raises(RatchetError, match="empg needs the entropy of what is sampled"):
        empg(batch([1.0, 0.0], ["a", "a"], [2, 2], entropy=[np.full(2, np.nan)] * 2), PUBLISHED["empg"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        Dapo(batches=10, overlong_buffer=0.5),
        Gigpo(omega=2.0, gamma=0.95),
        Gigpo(omega=1.0, gamma=0.5),
        Hgpo(k=0, alpha=1.0, gamma=0.95),
        Hgpo(k=2, alpha=0.0, gamma=0.95),
        Hgpo(k=2, alpha=1.0, gamma=0.5),
        Empg(k=2.0, k_next=1.0, zeta=0.05),
        Empg(k=1.0, k_next=2.0, zeta=0.05),
        Empg(k=1.0, k_next=1.0, zeta=0.1),
    ],
    ids=repr,
)
def test_every_option_of_an_estimator_changes_what_it_says(options: Any) -> None:
    name = type(options).__name__.lower()
    seen = [["a", "b", "c"], ["a", "b", "c", "d"], ["x", "b", "c", "d", "e"], ["a", "b"]]
    one = batch([1.0, 1.0, 0.0, 0.0], ["g"] * 4, [3, 4, 5, 2], observations=seen, length=[70, 95, 60, 20])
    told, otherwise = (np.concatenate(ESTIMATORS[name](one, own)[0]) for own in (PUBLISHED[name], options))
    assert np.abs(told - otherwise).max() > 1e-3
