"""GRPO's advantages: the published formula, and what a group without spread must not do."""

import json
from pathlib import Path

import numpy as np
import pytest

from ratchet.credit.batch import Batch
from ratchet.credit.grpo import group_advantage, grpo

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "group_advantage.json").read_text())


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_group_advantage_equals_the_vectors(case: dict) -> None:
    np.testing.assert_allclose(group_advantage(case["rewards"]), case["advantages"], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("rewards", [[1.0], [0.0, 0.0, 0.0], [0.1 + 0.2, 0.1 + 0.2]])
def test_a_group_without_spread_has_exactly_zero_advantage(rewards: list[float]) -> None:
    assert not group_advantage(rewards).any()


def test_every_step_gets_its_episodes_advantage_and_silent_groups_are_named() -> None:
    advantages, silent = grpo(Batch([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"], [2, 3, 1, 4]))
    assert [len(values) for values in advantages] == [2, 3, 1, 4]
    assert (advantages[0] > 0).all() and (advantages[1] < 0).all() and len(set(advantages[1])) == 1
    assert silent.tolist() == [False, False, True, True]


def test_groups_are_found_wherever_their_episodes_stand() -> None:
    together, _ = grpo(Batch([1.0, 0.0, 0.0, 1.0], ["a", "a", "b", "b"], [1, 1, 1, 1]))
    apart, _ = grpo(Batch([1.0, 0.0, 0.0, 1.0], ["a", "b", "a", "b"], [1, 1, 1, 1]))
    assert np.concatenate(together).tolist() == [together[0][0], together[1][0], together[2][0], together[3][0]]
    assert np.sign(np.concatenate(apart)).tolist() == [1, -1, -1, 1]
