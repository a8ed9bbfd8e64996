"""Success-filtered SFT: it learns from own successes alone, beside the policy term, and a weight means something in any micro-batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ratchet.learners.batches import Sequence
from ratchet.losses.likelihood import Likelihood, SuccessLikelihood
from tests.learners.test_actor import near, same, step, surrogate
from tests.models import tiny


def played() -> list[Sequence]:
    """Eight episodes; every third is solved, two of the solved ones and one other are silent."""
    return [replace(one, solved=number % 3 == 0, silent=number in (0, 3, 4)) for number, one in enumerate(near(tiny.sequences(8)))]


def test_it_is_the_likelihood_of_what_solved_episodes_wrote_silent_ones_included() -> None:
    batch = played()
    expected, metrics = step([Likelihood(0.3)], [one for one in batch if one.solved])
    found, own = step([SuccessLikelihood(0.3)], batch)
    same(expected, found)
    np.testing.assert_allclose(own["success_sft"], metrics["likelihood"], rtol=1e-5)


def test_it_adds_to_the_policy_term_and_neither_sees_the_others_tokens() -> None:
    batch = played()
    policy, alone = step([surrogate()], batch)
    success, _ = step([SuccessLikelihood(0.3)], batch)
    both, metrics = step([surrogate(), SuccessLikelihood(0.3)], batch)
    same({name: policy[name] + success[name] for name in policy}, both)
    np.testing.assert_allclose(metrics["policy"], alone["policy"], rtol=1e-5)


def test_off_leaves_the_gradients_bit_identical() -> None:
    batch = played()
    alone, _ = step([surrogate()], batch)
    off, _ = step([surrogate(), SuccessLikelihood(0.0)], batch)
    assert all(torch.equal(alone[name], off[name]) for name in alone)


def test_a_weight_does_not_cancel_where_an_episode_is_alone_in_its_micro_batch() -> None:
    batch = [replace(one, weight=2.0 + number) for number, one in enumerate(played())]
    whole, _ = step([SuccessLikelihood(1.0)], batch)
    alone, _ = step([SuccessLikelihood(1.0)], batch, batch_tokens=1)
    same(whole, alone)
    single = [batch[3]]
    once, _ = step([SuccessLikelihood(1.0)], [replace(batch[3], weight=1.0)], batch_tokens=1)
    fivefold, _ = step([SuccessLikelihood(1.0)], single, batch_tokens=1)
    same({name: 5 * value for name, value in once.items()}, fivefold)


def test_without_a_success_there_is_nothing_to_learn() -> None:
    gradients, metrics = step([SuccessLikelihood(1.0)], [replace(one, solved=False) for one in played()])
    assert not gradients and metrics["grad_norm"] == 0.0
