"""What the number of threads may change, and what it may not: docs/reproducibility.md states these numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ratchet.learners.actor import ActorLearner
from ratchet.losses.likelihood import Likelihood
from ratchet.losses.observation import ObservationLikelihood
from ratchet.models.build import from_scratch
from tests.models import tiny

LOGPROB_TOLERANCE = 1e-4  # nats, of one token
LOSS_TOLERANCE = 1e-5  # of the loss before the first step, relative
LATER_LOSS_TOLERANCE = 1e-3  # after five steps, relative: each step goes on from weights that differ already
BATCH = tiny.sequences(24)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def learned(threads: int, steps: int = 6) -> tuple[np.ndarray, list[float]]:
    """(log-probs of all reply tokens before the first step, the loss at each step); matrices are large enough to be shared out."""
    torch.set_num_threads(threads)
    template = tiny.template()
    model = from_scratch(layers=2, width=128, heads=4, kv_heads=2, mlp=512, vocab=len(template.tokenizer), context=512, seed=1,
                         begin=template.tokenizer.bos_token_id, end=template.end, pad=template.pad)  # fmt: skip
    learner = ActorLearner(model, [Likelihood(), ObservationLikelihood(0.3)], optimizer="muon", batch_tokens=4096, max_grad_norm=1.0)
    logprobs = np.concatenate(list(learner.logprobs(BATCH).values()))
    return logprobs, [learner.update(BATCH, 1e-3).metrics["likelihood"] for _ in range(steps)]


def test_one_and_two_threads_agree_within_the_stated_tolerance() -> None:
    one, two = learned(1), learned(2)
    assert np.abs(one[0] - two[0]).max() <= LOGPROB_TOLERANCE
    assert abs(one[1][0] - two[1][0]) <= LOSS_TOLERANCE * abs(one[1][0])
    assert all(abs(a - b) <= LATER_LOSS_TOLERANCE * abs(a) for a, b in zip(one[1], two[1], strict=True))
    assert one[1][-1] < 0.95 * one[1][0], "and it learned something meanwhile"


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_number_of_threads_gives_the_same_bits(threads: int) -> None:
    first, again = learned(threads, 2), learned(threads, 2)
    assert np.array_equal(first[0], again[0]) and first[1] == again[1]
