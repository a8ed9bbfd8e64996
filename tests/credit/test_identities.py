"""Exact identities of methods §4, by enumerating every group that a policy on a small tree can play, in float64.

What is enumerated goes through the code that learns: advantages from `ratchet/credit`, the gradient from `clipped_surrogate` at ratio 1.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from math import comb

import numpy as np
import pytest
import torch
from torch import Tensor

from ratchet.credit.grpo import group_advantage
from ratchet.credit.rloo import leave_one_out
from ratchet.losses.clipped_surrogate import clipped_surrogate

# Three nodes with 3, 2 and 3 actions; an episode is its (node, action) pairs, and whether it ends solved.
SIZES = (3, 2, 3)
EPISODES: list[tuple[list[tuple[int, int]], bool]] = [
    ([(0, 0)], False),
    ([(0, 1), (1, 0)], True),
    ([(0, 1), (1, 1)], False),
    ([(0, 2), (2, 0)], True),
    ([(0, 2), (2, 1)], False),
    ([(0, 2), (2, 2)], True),
]
LOGITS = [torch.tensor(values, dtype=torch.float64) for values in ([0.3, -0.8, 0.1], [-0.4, 0.9], [0.7, 0.2, -1.1])]


def logprobs(logits: list[Tensor], steps: list[tuple[int, int]]) -> Tensor:
    tables = [values.log_softmax(0) for values in logits]
    return torch.stack([tables[node][action] for node, action in steps])


def gradient(value: Callable[[list[Tensor]], Tensor]) -> np.ndarray:
    logits = [values.clone().requires_grad_() for values in LOGITS]
    found = torch.autograd.grad(value(logits), logits, allow_unused=True)
    return np.concatenate([np.zeros(n) if one is None else one.numpy() for n, one in zip(SIZES, found, strict=True)])


def ascent(steps: list[tuple[int, int]], advantage: float) -> np.ndarray:
    """−∇ Σ_t of the surrogate's loss, at the policy that sampled."""

    def loss(logits: list[Tensor]) -> Tensor:
        logp = logprobs(logits, steps)
        return clipped_surrogate(logp - logp.detach(), torch.full_like(logp, advantage), 0.2, 0.28).sum()

    return -gradient(loss)


SCORES = np.stack([ascent(steps, 1.0) for steps, _ in EPISODES])  # Σ_t ∇ log π(a_t | h_t)
CHANCE = np.array([float(logprobs(LOGITS, steps).sum().exp()) for steps, _ in EPISODES])
SOLVED = np.array([solved for _, solved in EPISODES])
P = CHANCE[SOLVED].sum()


def expected(advantages: Callable[[np.ndarray], np.ndarray], size: int) -> np.ndarray:
    """E[(1/G) Σ_i A_i Σ_t ∇ log π] over all groups of `size` episodes."""
    total = np.zeros(SCORES.shape[1])
    for group in product(range(len(EPISODES)), repeat=size):
        members = list(group)
        total += CHANCE[members].prod() * (advantages(SOLVED[members].astype(np.float64)) @ SCORES[members]) / size
    return total


def test_the_surrogates_gradient_at_ratio_1_is_linear_in_the_advantage() -> None:
    for steps, _ in EPISODES:
        np.testing.assert_allclose(ascent(steps, -1.7), -1.7 * ascent(steps, 1.0), rtol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_grpo_in_expectation_is_imitation_of_the_own_successes(size: int) -> None:
    """E[GRPO gradient] = E_{s~Bin(G,p)}[√(ŝ(1−ŝ))] / (1−p) · E_{Y=1}[Σ_t ∇ log π], at finite G."""
    imitation = (CHANCE * SOLVED) @ SCORES / P
    spread = sum(comb(size, s) * P**s * (1 - P) ** (size - s) * np.sqrt(s / size * (1 - s / size)) for s in range(size + 1))
    np.testing.assert_allclose(expected(partial(group_advantage, epsilon=0.0), size), spread / (1 - P) * imitation, rtol=0, atol=1e-14)
    np.testing.assert_allclose(expected(group_advantage, size), spread / (1 - P) * imitation, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_rloo_in_expectation_is_the_gradient_of_success(size: int) -> None:
    def success(logits: list[Tensor]) -> Tensor:
        return torch.stack([logprobs(logits, steps).sum().exp() for steps, solved in EPISODES if solved]).sum()

    np.testing.assert_allclose(expected(leave_one_out, size), gradient(success), rtol=0, atol=1e-14)
