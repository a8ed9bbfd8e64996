"""What an update is watched for: steps that must not be taken, and whether sampler and learner mean the same distribution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence as Seq
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from ratchet.errors import RatchetError
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import REPLY, Micro, Sequence

SAMPLE, SAMPLE_TOKENS = 8, 4096  # at most so many sequences and tokens are compared where the learner's own pass cannot tell


def check_skipped(skipped: int, steps: int, limit: float, section: str) -> None:
    """Raises RatchetError once more of a stage's `steps` optimiser steps (all that it will take) were skipped than `limit` allows.

    `section` of the settings says how the steps were taken.
    """
    if skipped > limit * steps:
        raise RatchetError(
            f"{skipped} of {steps} optimiser steps were skipped because their gradient was not finite or exploded, above "
            f"learner.max_skipped_share={limit:g}; lower {section}.lr, or set learner.autocast to none where it is not"
        )


def check_agreement(largest: float, limit: float) -> None:
    """Raises RatchetError where the log-probs of sampler and learner differ by more than `limit`, or by something that is no number."""
    if not largest <= limit:
        raise RatchetError(
            f"sampler and learner differ by {largest:.3g} in the log-prob of a token, above evolve_online.logprob_limit={limit:g}: they do "
            "not compute the same distribution, and no importance ratio would be right; where the model is half precision, raise the limit"
        )


class Agreement:
    """Adds nothing to the loss: in the pass that learns from them, it compares what sampler and learner say of the replies' tokens.

    Before an iteration's first optimiser step both have the same weights, so whatever is found there is an error of one of them.
    """

    name = "agreement"
    weight = 1.0
    roles = frozenset({REPLY})

    def __init__(self) -> None:
        self.largest: list[float] = []
        self.total, self.tokens = 0.0, 0

    def wants(self, one: Sequence) -> bool:
        return False  # it looks on where others learn

    def denominator(self, batch: Seq[Sequence]) -> float:
        return 1.0

    def numerator(self, logp: Tensor, micro: Micro) -> tuple[Tensor, dict[str, Tensor]]:
        mine = micro.role == REPLY
        gaps = (logp.detach()[mine].float() - micro.old_logprob[mine]).abs()
        self.add(gaps.cpu().numpy())
        return logp.new_zeros(()), {}

    def add(self, gaps: np.ndarray) -> None:
        """`gaps` [tokens]: |log-prob of the sampler − of the learner|."""
        if len(gaps):
            self.largest.append(float(gaps.max()))
            self.total, self.tokens = self.total + float(gaps.sum(dtype=np.float64)), self.tokens + len(gaps)

    def compare(self, sequences: Seq[Sequence], found: Mapping[str, np.ndarray]) -> None:
        """Adds what is `found` by a pass over `sequences` (episode → log-probs of its tokens) beside what their sampler recorded."""
        for one in sequences:
            self.add(np.abs(found[one.episode_id] - one.old_logprobs)[one.role == REPLY])

    def metrics(self) -> dict[str, float]:
        """Largest and mean difference, not a number where one was none, and of how many tokens."""
        return {
            "logprob_max_diff": float(np.max(self.largest)) if self.largest else 0.0,
            "logprob_mean_diff": self.total / max(self.tokens, 1),
            "logprob_tokens": self.tokens,
        }


@contextmanager
def watching(learner: ActorLearner) -> Iterator[Agreement]:
    """Every update in it is compared with what sampled its sequences."""
    found, terms = Agreement(), learner.terms
    learner.terms = [*terms, found]
    try:
        yield found
    finally:
        learner.terms = terms


def sampled_agreement(learner: ActorLearner, sequences: Seq[Sequence], most: int = SAMPLE, tokens: int = SAMPLE_TOKENS) -> Agreement:
    """Of the first `most` sequences, those of them that `tokens` hold (one at least), by a pass of their own in full precision."""
    lengths = np.cumsum([len(one.ids) for one in sequences[:most]])
    agreement, sample = Agreement(), sequences[: max(1, int((lengths <= tokens).sum()))]
    agreement.compare(sample, learner.logprobs(sample))
    return agreement
