"""KL to a reference policy: k3 for what the policy itself wrote (methods §2), a bounded one for what others did."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Literal

from torch import Tensor

from ratchet.learners.batches import REPLY, Micro, Sequence


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """exp(d) − d − 1 with d = log π_ref − log π, per token: unbiased for KL(π‖π_ref) under π and never negative. [M] → [M]."""
    difference = reference - logp
    return difference.exp() - difference - 1


def seen_kl(logp: Tensor, reference: Tensor) -> Tensor:
    """KL(π‖π_ref) of the distribution over {the token that stands there, any other}, per token: p·log(p/q) + (1−p)·log((1−p)/(1−q)), in
    nats. [M] → [M], fp64.

    Never more than the divergence over the whole vocabulary (data processing), and of whatever wrote the token: k3 is unbiased for
    tokens of π itself, and where π has turned from a token of the reference's, one that an expert wrote, say, it is exp(d).
    """
    logp, reference = logp.double(), reference.double()
    others, their_others = _log_others(logp), _log_others(reference)
    return logp.exp() * (logp - reference) + others.exp() * (others - their_others)


def _log_others(logp: Tensor) -> Tensor:
    """log(1 − exp(logp)), at least −30."""
    return (-logp.expm1()).clamp(min=1e-13).log()


Estimator = Literal["k3", "seen"]
ESTIMATORS = {"k3": k3, "seen": seen_kl}


class ReferenceKL:
    """Mean divergence over action tokens. Silent episodes count in the denominator and give no gradient here either.

    `k3` where the policy itself wrote the tokens. On a buffer that holds what others wrote, or what the policy has since turned from, k3
    and its gradient are exp(d): one token at log-prob −14.6 that the reference gives −.6 weighed 1.2 million in a failure of the round
    before, and the update was that token's way back. `seen` is bounded (methods §5 leaves the estimator open).
    """

    name = "reference_kl"
    roles = frozenset({REPLY})

    def __init__(self, weight: float, estimator: Estimator = "k3") -> None:
        self.weight, self.estimator = weight, estimator

    def wants(self, one: Sequence) -> bool:
        return not one.silent

    def denominator(self, batch: Seq[Sequence]) -> float:
        if any(one.reference_logprobs is None for one in batch if self.wants(one)):
            raise ValueError("the KL term needs reference_logprobs in every sequence that is not silent")
        return float(sum(one.n_reply for one in batch))

    def numerator(self, logp: Tensor, micro: Micro) -> tuple[Tensor, dict[str, Tensor]]:
        mine = (micro.role == REPLY) & ~micro.silent
        return ESTIMATORS[self.estimator](logp[mine], micro.reference_logprob[mine]).sum().to(logp.dtype), {}
