"""The forecast term beside the policy's: its own normalisation, nothing cancelled, nothing diluted, exactly nothing at weight 0."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import FORECAST, REPLY, Branch, Sequence
from ratchet.learners.online import Credited, learn
from ratchet.losses.clipped_surrogate import ClippedSurrogate
from ratchet.losses.forecast import Forecast
from ratchet.losses.kl import ReferenceKL
from ratchet.losses.observation import ObservationLikelihood
from tests.models import tiny
from tests.models.test_branches import branched, furthest, gradients


def surrogate() -> ClippedSurrogate:
    return ClippedSurrogate(low=0.2, high=0.28)


def of(terms: list[Any], batch: list[Sequence], **options: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    return gradients(tiny.model(), terms, batch, **options)


def weighed(one: Sequence, factor: float) -> Sequence:
    return replace(one, branches=tuple(replace(branch, weight=branch.weight * factor) for branch in one.branches))


def nats(one: Sequence, branch: Branch) -> float:
    """−Σ log p of a branch's loss tokens after its history, by transformers' own attention."""
    ids = np.concatenate([one.ids[: branch.at + 1], branch.ids])
    logp = tiny.reference_logprobs(tiny.model(), ids).numpy()[branch.at :]
    return -float(logp[branch.role == FORECAST].sum())


def test_its_value_is_the_weighted_sum_over_all_groups() -> None:
    batch = branched()
    _, metrics = of([Forecast(1.0)], batch)
    expected = sum(branch.weight * nats(one, branch) for one in batch for branch in one.branches)
    np.testing.assert_allclose(metrics["forecast"], expected, rtol=1e-4)  # six shares of a sixth: one group
    halved = [replace(one, group_share=one.group_share * 2) for one in batch]
    np.testing.assert_allclose(of([Forecast(1.0)], halved)[1]["forecast"], expected / 2, rtol=1e-4)
    np.testing.assert_allclose(metrics["forecast_nats"], sum(nats(one, branch) for one in batch for branch in one.branches), rtol=1e-4)


def test_at_weight_zero_the_gradients_are_those_of_grpo_to_the_bit() -> None:
    batch = branched()
    plain = [replace(one, branches=(), group_share=0.0) for one in batch]
    alone, _ = of([surrogate(), ReferenceKL(0.0)], plain)
    off, metrics = of([surrogate(), ReferenceKL(0.0), Forecast(0.0)], batch)
    assert alone.keys() == off.keys() and all(torch.equal(value, off[name]) for name, value in alone.items())
    assert "forecast" not in metrics


def test_the_gradients_of_both_terms_add_up_and_neither_sees_the_others_tokens() -> None:
    batch = branched()
    alone, policy = of([surrogate()], batch)
    forecast, _ = of([Forecast(0.7)], batch)
    both, metrics = of([surrogate(), Forecast(0.7)], batch)
    assert furthest({name: alone[name] + forecast[name] for name in alone}, both) < 1e-5
    assert metrics["policy"] == pytest.approx(policy["policy"], rel=1e-6) and metrics["kl"] == pytest.approx(policy["kl"], rel=1e-5)


@pytest.mark.parametrize("budget", [1, 80, 10**6])
def test_weights_do_not_cancel_whatever_the_micro_batch(budget: int) -> None:
    batch = branched()
    once, _ = of([Forecast(1.0)], [replace(one, branches=()) for one in batch[:3]] + batch[3:4], batch_tokens=budget)
    double, _ = of([Forecast(1.0)], [replace(one, branches=()) for one in batch[:3]] + [weighed(batch[3], 2.0)], batch_tokens=budget)
    assert furthest({name: 2 * value for name, value in once.items()}, double) < 1e-5
    whole, _ = of([Forecast(1.0)], batch)
    assert furthest(of([Forecast(1.0)], batch, batch_tokens=budget)[0], whole) < 1e-5


def test_a_mean_over_drawn_prefixes_has_the_expectation_of_all() -> None:
    [one] = [one for one in branched() if len(one.branches) >= 4][:1]
    one = replace(one, branches=tuple(replace(branch, weight=1 / len(one.branches)) for branch in one.branches))
    everything, _ = of([Forecast(1.0)], [one])
    pairs = list(combinations(one.branches, 2))
    mean = {name: torch.zeros_like(value) for name, value in everything.items()}
    for pair in pairs:
        drawn = replace(one, branches=tuple(replace(branch, weight=1 / 2) for branch in pair))
        for name, value in of([Forecast(1.0)], [drawn])[0].items():
            mean[name] += value / len(pairs)
    assert furthest(mean, everything) < 1e-5


def test_a_silent_group_still_forecasts_and_its_policy_term_stays_exactly_silent() -> None:
    batch = [replace(one, silent=True) for one in branched()]
    reference = [replace(one, reference_logprobs=np.ones(len(one.ids), np.float32)) for one in batch]
    forecast, _ = of([Forecast(0.7)], batch)
    joint, metrics = of([surrogate(), ReferenceKL(0.5), Forecast(0.7)], reference)
    assert all(torch.equal(value, forecast[name]) for name, value in joint.items()) and metrics["policy"] == 0 == metrics["reference_kl"]


def test_a_trunk_that_no_term_reads_further_ends_at_its_last_point() -> None:
    learner = ActorLearner(tiny.model(), [surrogate(), Forecast(1.0)], optimizer="adamw", batch_tokens=10**6, max_grad_norm=1.0)
    [one] = [one for one in branched() if one.branches][:1]
    one = replace(one, branches=tuple(branch for branch in one.branches if branch.at < 5))
    [heard] = learner._micro_batches([one], learner.terms)
    [silent] = learner._micro_batches([replace(one, silent=True)], learner.terms)
    assert heard.ids.shape[1] - silent.ids.shape[1] == len(one.ids) - (one.branches[-1].at + 1) > 0
    assert (heard.role == REPLY).any() and not (silent.role == REPLY).any()


def test_only_those_terms_take_part_that_are_named() -> None:
    batch = branched()
    learner = ActorLearner(tiny.model(), [surrogate(), ObservationLikelihood(0.1), Forecast(0.7)], optimizer="adamw", batch_tokens=10**6, max_grad_norm=1.0)
    metrics = learner.update(batch, 0.0, frozenset({"forecast"})).metrics
    assert set(metrics) == {"forecast", "forecast_nats", "forecast_tokens", "grad_norm"}
    assert metrics["grad_norm"] == pytest.approx(of([Forecast(0.7)], batch)[1]["grad_norm"], rel=1e-5)


def test_steps_of_its_own_are_taken_behind_the_policys() -> None:
    batch, found = branched(), {}
    for name, apart in {"joint": frozenset(), "separate": frozenset({"forecast"}), "unknown": frozenset({"echo"})}.items():
        learner = ActorLearner(tiny.model(), [surrogate(), Forecast(0.7)], optimizer="adamw", batch_tokens=10**6, max_grad_norm=1e6)
        taken: list[float] = []
        finish = learner._step
        learner._step = lambda sums, lr, taken=taken, finish=finish: taken.append(lr) or finish(sums, lr)  # type: ignore[method-assign]
        metrics = learn(learner, Credited(batch, 1, 0, ["g"] * len(batch), [""] * len(batch)), steps=2, lr=1e-3, reference=None, apart=apart)
        assert len(taken) == (4 if name == "separate" else 2) and ("grad_norm_apart" in metrics) == (name == "separate")
        assert metrics["forecast"] > 0 and metrics["logprob_tokens"] > 0
        found[name] = learner.logprobs(batch[:1])[batch[0].episode_id]
    assert np.array_equal(found["unknown"], found["joint"]) and not np.allclose(found["separate"], found["joint"], atol=1e-5)
