"""Estimators that compare steps: the published vectors, worked examples, and what must stay silent."""

import json
from pathlib import Path

import numpy as np
import pytest

from ratchet.credit.batch import Batch
from ratchet.credit.gigpo import gigpo
from ratchet.credit.hgpo import hgpo
from ratchet.credit.returns import discounted
from ratchet.settings_online import PUBLISHED, Gigpo, Hgpo

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "gigpo.json").read_text())


def batch(rewards: list[list[float]], observations: list[list[str]], groups: list[str] | None = None) -> Batch:
    return Batch(
        rewards=[sum(one) for one in rewards],
        groups=groups or ["g"] * len(rewards),
        n_steps=[len(one) for one in rewards],
        step_rewards=[np.array(one) for one in rewards],
        observations=observations,
    )


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_gigpo_equals_the_vectors(case: dict) -> None:
    found, silent = gigpo(batch(case["rewards"], case["observations"]), Gigpo(omega=case["omega"], gamma=case["gamma"]))
    for mine, expected in zip(found, case["advantage"], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)
    assert not silent.any()


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_gigpo_compares_steps_of_one_group_only(case: dict) -> None:
    alone, _ = gigpo(batch(case["rewards"], case["observations"]), PUBLISHED["gigpo"])
    twice, _ = gigpo(batch(case["rewards"] * 2, case["observations"] * 2, ["a"] * 4 + ["b"] * 4), PUBLISHED["gigpo"])
    for mine, expected in zip(twice, [*alone, *alone], strict=True):
        assert mine.tolist() == expected.tolist()


def test_gigpo_without_its_step_term_is_grpo() -> None:
    case = VECTORS["cases"][0]
    found, _ = gigpo(batch(case["rewards"], case["observations"]), Gigpo(omega=0.0, gamma=0.95))
    for mine, expected in zip(found, case["episode_advantage"], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6)


def test_the_reward_of_any_step_reaches_the_steps_before_it() -> None:
    assert discounted([1.0, 0.0, 2.0], 0.5).tolist() == [1.5, 1.0, 2.0]
    early, _ = gigpo(batch([[1.0, 0.0], [0.0, 0.0]], [["a", "b"], ["a", "b"]]), Gigpo(omega=1.0, gamma=1.0))
    assert early[0][0] > early[0][1] > 0  # the second step of it came after the reward and has the outcome alone


@pytest.mark.parametrize("estimator", [gigpo, hgpo])
@pytest.mark.parametrize(
    ("rewards", "observations"),
    [
        ([[0.0, 0.0], [0.0, 0.0, 0.0]], [["a", "b"], ["a", "a", "b"]]),  # nobody solved it
        ([[0.0, 1.0], [0.0, 1.0]], [["a", "b"], ["a", "c"]]),  # all solved it alike
        ([[0.0, 0.0, 1.0]], [["a", "a", "b"]]),  # one episode, by one place twice
    ],
)
def test_a_group_that_says_nothing_is_silent_and_exactly_zero(estimator: object, rewards: list, observations: list) -> None:
    found, silent = estimator(batch(rewards, observations), PUBLISHED[estimator.__name__])  # type: ignore[operator, attr-defined]
    assert silent.all() and not any(values.any() for values in found)


@pytest.mark.parametrize("estimator", [gigpo, hgpo])
def test_among_successes_the_shorter_way_from_the_same_place_is_better(estimator: object) -> None:
    found, silent = estimator(batch([[1.0], [0.0, 0.0, 1.0]], [["a"], ["a", "x", "y"]]), PUBLISHED[estimator.__name__])  # type: ignore[operator, attr-defined]
    assert found[0][0] > 0 > found[1][0] and not silent.any()


def test_hgpo_compares_the_longest_common_histories_most() -> None:
    """By hand: at the latest observation alone three steps are alike, with the one before it two of them."""
    one = batch([[0.0, 1.0], [0.0, 0.0], [0.0, 0.5]], [["a", "z"], ["a", "z"], ["b", "z"]])
    found, _ = hgpo(one, Hgpo(k=1, alpha=1.0, gamma=1.0))
    last = np.array([1.0, 0.0, 0.5])
    a_1, a_2 = (last - last.mean()) / (last.std() + 1e-6), np.array([0.5, -0.5]) / (0.5 + 1e-6)
    np.testing.assert_allclose([found[0][1], found[1][1]], (2 * a_1[:2] + 3 * a_2) / 5, rtol=1e-6)
    assert found[2][1] == 0  # the mean of its only group: no A_k is left
    first = np.array([0.5, -0.5]) / (0.5 + 1e-6)  # "a" twice, returns 1 and 0; histories of two do not exist yet
    np.testing.assert_allclose([found[0][0], found[1][0]], first, rtol=1e-6)
    assert found[2][0] == 0


def test_hgpo_leaves_zero_valued_levels_out_of_its_weights() -> None:
    """The last step's return is the mean of those with its observation, so only its longer history counts, with its whole weight."""
    one = batch([[0.0, 0.5], [0.0, 0.0], [0.0, 1.0], [0.0, 0.5]], [["a", "z"], ["a", "z"], ["c", "z"], ["d", "z"]])
    found, _ = hgpo(one, Hgpo(k=1, alpha=1.0, gamma=1.0))
    np.testing.assert_allclose(found[0][1], 0.25 / (0.25 + 1e-6), rtol=1e-6)


def test_hgpo_of_the_latest_observation_alone_is_a_step_term_with_the_populations_std() -> None:
    case = VECTORS["cases"][0]
    mine, _ = hgpo(batch(case["rewards"], case["observations"]), Hgpo(k=0, alpha=1.0, gamma=case["gamma"]))
    sizes: dict[str, int] = {}
    for text in (text for texts in case["observations"] for text in texts):
        sizes[text] = sizes.get(text, 0) + 1
    for values, expected, texts in zip(mine, case["step_advantage"], case["observations"], strict=True):
        scale = [np.sqrt(sizes[text] / max(sizes[text] - 1, 1)) for text in texts]
        np.testing.assert_allclose(values, np.array(expected) * scale, rtol=1e-4, atol=1e-6)
