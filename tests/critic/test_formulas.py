"""The formulas of the critic against the vectors, and what must hold of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.credit.gae import advantage, gae, td_error
from ratchet.credit.returns import discounted
from ratchet.critic.metrics import calibration_error, rank_correlation
from ratchet.losses.awr import awr_weights, scaled
from ratchet.losses.clipped_surrogate import clipped_surrogate
from ratchet.losses.expectile import expectile_loss, iql_losses, iql_weights
from ratchet.samples import ranks

VECTORS = Path(__file__).parents[1] / "vectors"


def cases(name: str) -> list[dict]:
    return json.loads((VECTORS / f"{name}.json").read_text())["cases"]


@pytest.mark.parametrize("case", cases("gae"))
def test_gae_equals_the_vectors(case: dict) -> None:
    arguments = case["reward"], np.array(case["value"]), case["terminated"]
    np.testing.assert_allclose(td_error(*arguments, case["gamma"]), case["delta"], rtol=1e-9)
    np.testing.assert_allclose(gae(*arguments, case["gamma"], case["lam"]), case["advantage"], rtol=1e-9)


@pytest.mark.parametrize("case", cases("weighted_iql"))
def test_weighted_iql_equals_the_vectors(case: dict) -> None:
    steps = case["T"]
    weights = iql_weights(steps, bool(case["success"]))
    np.testing.assert_allclose(weights, case["weights"], rtol=1e-6)
    value, q, reward = (torch.tensor(case[name], dtype=torch.float64) for name in ("value", "q", "reward"))
    following = torch.tensor([*range(1, steps), -1])
    found = iql_losses(
        value[:steps], q[:, None], q, reward, following, torch.zeros(steps, dtype=torch.float64), weights.double(), gamma=case["gamma"], tau=case["tau"]
    )
    np.testing.assert_allclose(found.value / steps, case["loss_v"], rtol=1e-6)
    np.testing.assert_allclose(found.q / steps, case["loss_q"], rtol=1e-6)


@pytest.mark.parametrize("case", [case for case in cases("clipped_surrogate") if case["kind"] == "bppo"])
def test_bppo_is_the_surrogate_with_its_own_clip(case: dict) -> None:
    log_ratio, credit = (torch.tensor([case[name]], dtype=torch.float64) for name in ("log_ratio", "advantage"))
    np.testing.assert_allclose(clipped_surrogate(log_ratio, credit, low=0.8, high=0.4).item(), case["loss"], rtol=1e-6)


def test_a_truncated_end_bootstraps_and_a_terminated_one_does_not() -> None:
    reward, value = np.zeros(3), np.array([0.1, 0.2, 0.3, 5.0])
    ended, cut = gae(reward, value, True), gae(reward, value, False)
    assert ended[-1] == pytest.approx(-0.3) and cut[-1] == pytest.approx(0.99 * 5 - 0.3)
    assert np.array_equal(ended, gae(reward, np.array([0.1, 0.2, 0.3, -7.0]), True))
    assert value[-1] == 5.0, "and what was given is not changed"


def test_at_an_expectile_of_one_half_the_loss_is_half_the_squared_error() -> None:
    difference = torch.randn(50)
    torch.testing.assert_close(expectile_loss(difference, 0.5), 0.5 * difference.square())
    above, below = expectile_loss(torch.tensor([1.0, -1.0]), 0.7)
    assert above == pytest.approx(0.7) and below == pytest.approx(0.3)


def test_the_ratio_of_an_older_step_scales_its_weight_and_not_the_exponent() -> None:
    advantage, ratio = np.array([-1.0, 0.5, 9.0, 2.0]), np.array([0.01, 1.0, 0.5, 0.0])
    weights = awr_weights(torch.from_numpy(scaled(advantage, ratio, 0.7, 20.0)), 0.7, 20.0).numpy()
    np.testing.assert_allclose(weights, ratio * np.minimum(np.exp(advantage / 0.7), 20.0), atol=1e-25)


def test_each_term_of_the_weights_can_be_left_out() -> None:
    assert iql_weights(4, True, outcome=False).tolist() == iql_weights(4, False).tolist() == [0.5, 0.625, 0.75, 0.875]
    assert iql_weights(4, True, time=False).tolist() == [1.0] * 4 and iql_weights(4, False, time=False).tolist() == [0.5] * 4
    assert iql_weights(4, True, time=False, outcome=False).tolist() == iql_weights(4, False, time=False, outcome=False).tolist() == [1.0] * 4


def told(kind: str, **changes: object) -> np.ndarray:
    rng = np.random.default_rng(0)
    given = {"reward": np.array([0.0, 0.0, 1.0]), "aux": np.array([-0.3, 0.0, -0.1]), "value": rng.normal(size=4), "q": rng.normal(size=3)}
    return advantage(kind, **{**given, "terminated": True, "gamma": 0.99, "lam": 0.95, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["gae", "q_minus_v", "td", "potential"])
def test_retrospective_rewards_never_enter_an_advantage(kind: str) -> None:
    assert np.array_equal(told(kind), told(kind, aux=np.full(3, -9.0)))
    assert not np.array_equal(told("gae_aux"), told("gae_aux", aux=np.full(3, -9.0)))


def test_the_ablations_are_what_they_are_called() -> None:
    rng = np.random.default_rng(0)
    value, q = rng.normal(size=4), rng.normal(size=3)
    np.testing.assert_allclose(told("q_minus_v"), q - value[:3])
    np.testing.assert_allclose(told("td"), told("gae", lam=0.0))
    np.testing.assert_allclose(told("potential"), discounted(np.array([0, 0, 1.0]), 0.99) - value[:3])


def test_what_follows_an_action_of_an_older_policy_counts_by_its_ratio() -> None:
    trace = np.array([1.0, 0.0, 1.0])
    cut = told("gae", trace=trace)
    np.testing.assert_allclose(cut[0], told("td")[0])
    np.testing.assert_allclose(cut[1:], told("gae")[1:])
    np.testing.assert_allclose(told("gae", trace=np.ones(3)), told("gae"))


def test_ranks_share_ties_and_a_single_outcome_has_no_correlation() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [1, 1, 1]) is None and rank_correlation([1], [0]) is None


def test_a_value_that_is_what_comes_of_it_is_calibrated() -> None:
    realised = np.repeat([0.0, 1.0], 50)
    assert calibration_error(realised, realised) == 0 and calibration_error(realised + 0.25, realised) == pytest.approx(0.25)
