"""Implicit Q-learning on a chain comes to what dynamic programming says."""

import numpy as np
import pytest

from benchmarks.critic_run import Chain, tabular


@pytest.mark.parametrize("tau", [0.5, 0.7])
def test_tables_come_to_the_values_of_dynamic_programming(tau: float) -> None:
    assert tabular(tau, steps=2500) < 1e-3


def test_a_higher_expectile_expects_more_and_a_half_expects_the_mean() -> None:
    chain = Chain()
    (mean, q), (above, _) = chain.solved(0.5), chain.solved(0.9)
    assert (above > mean).all()
    right = np.where(np.arange(chain.states) % 2 == 0, chain.skill, chain.skill / 2)
    np.testing.assert_allclose(mean, (1 - right) * q[:, 0] + right * q[:, 1], atol=1e-9)
