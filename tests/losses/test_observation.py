"""ECHO: what is read after the first action is foreseen in the same pass, by all episodes, with a denominator of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ratchet.clock import CLOCK
from ratchet.learners.batches import OBSERVATION, PROMPT
from ratchet.losses.observation import ObservationLikelihood
from tests.learners.test_actor import make, near, same, step, surrogate
from tests.models import tiny

LAMBDA = 0.05


def test_it_is_the_mean_over_observation_tokens_after_the_first_action() -> None:
    batch = near(tiny.sequences(6))
    _, metrics = step([surrogate(), ObservationLikelihood(LAMBDA)], batch)
    model, total = make([surrogate()]).model, 0.0
    for one in batch:
        assert (one.role[one.step == 0] != OBSERVATION).all() and (one.role[:1] == PROMPT).all()
        total -= float(tiny.reference_logprobs(model, one.ids)[torch.from_numpy(one.role[1:] == OBSERVATION)].sum())
    np.testing.assert_allclose(metrics["observation"], total / sum(one.n_observation for one in batch), rtol=1e-4)


def test_all_episodes_teach_it_whatever_their_outcome_and_their_group() -> None:
    batch = near(tiny.sequences(6))
    expected, _ = step([ObservationLikelihood(LAMBDA)], batch)
    others = [replace(one, silent=number % 2 == 0, solved=number % 3 == 0, advantages=-one.advantages) for number, one in enumerate(batch)]
    found, _ = step([ObservationLikelihood(LAMBDA)], others)
    same(expected, found)


def test_it_costs_no_second_pass() -> None:
    batch = near(tiny.sequences(6))
    before = CLOCK.counts["tokens_learned"]
    step([surrogate(), ObservationLikelihood(LAMBDA)], batch)
    assert CLOCK.counts["tokens_learned"] - before == sum(len(one.ids) for one in batch)
