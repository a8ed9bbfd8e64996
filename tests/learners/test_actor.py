"""The actor's learner: what a step is worth does not depend on how the batch is cut, and no term dilutes another."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.clock import CLOCK
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import OBSERVATION, REPLY, Sequence
from ratchet.losses.clipped_surrogate import ClippedSurrogate
from ratchet.losses.kl import ReferenceKL
from ratchet.losses.likelihood import Likelihood
from ratchet.losses.observation import ObservationLikelihood
from tests.models import tiny


def surrogate(**changes: Any) -> ClippedSurrogate:
    return ClippedSurrogate(**{"low": 0.2, "high": 0.28, **changes})


def make(terms: list[Any], batch_tokens: int = 10**6, max_grad_norm: float = 1e6, optimizer: str = "adamw", **options: Any) -> ActorLearner:
    return ActorLearner(tiny.model(), terms, optimizer=optimizer, batch_tokens=batch_tokens, max_grad_norm=max_grad_norm, **options)


def near(sequences: list[Sequence], shift: float = 0.15) -> list[Sequence]:
    """Old log-probs close to the model's own, so that ratios lie on both sides of the clip; a reference a little apart."""
    learner = make([Likelihood()])
    found = learner.logprobs(sequences)
    rng = np.random.default_rng(1)
    out = []
    for one in sequences:
        mine = one.role == REPLY
        old = np.where(mine, found[one.episode_id] + rng.normal(0, shift, len(one.ids)), 0).astype(np.float32)
        reference = np.where(mine, found[one.episode_id] + rng.normal(0, shift, len(one.ids)), 0).astype(np.float32)
        out.append(replace(one, old_logprobs=old, reference_logprobs=reference))
    return out


def step(terms: list[Any], batch: list[Sequence], **options: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Gradients and metrics of one update at learning rate 0."""
    learner = make(terms, **options)
    kept: dict[str, torch.Tensor] = {}
    finish = learner._step
    learner._step = lambda sums, lr: kept.update(tiny.gradients(learner)) or finish(sums, lr)  # type: ignore[method-assign]
    update = learner.update(batch, 0.0)
    return kept, update.metrics


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], rtol: float = 1e-4, atol: float = 1e-6) -> None:
    assert a.keys() == b.keys() and a
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=rtol, atol=atol, msg=name)


TERMS = [surrogate(), ReferenceKL(0.1), ObservationLikelihood(0.3)]


@pytest.mark.parametrize("mean", ["token", "episode"])
@pytest.mark.parametrize("level", ["token", "step_sum", "step_mean"])
def test_cutting_the_batch_changes_neither_loss_nor_gradients(mean: str, level: str) -> None:
    batch = near(tiny.sequences(8))
    terms = [surrogate(mean=mean, level=level, dual=3.0), *TERMS[1:]]
    whole, metrics = step(terms, batch)
    for budget in (1, 60):  # every episode alone, and a few together
        cut, others = step(terms, batch, batch_tokens=budget)
        same(cut, whole)
        for name, value in metrics.items():
            np.testing.assert_allclose(others[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_batch_of_eight_is_eight_batches_of_one() -> None:
    batch = near(tiny.sequences(8))
    whole, metrics = step([surrogate(), ObservationLikelihood(0.5)], batch)
    total: dict[str, torch.Tensor] = {}
    loss = 0.0
    sizes = [(one.n_reply, one.n_observation) for one in batch]
    for one, (reply, observation) in zip(batch, sizes, strict=True):
        for term, share in ((surrogate(), reply / sum(r for r, _ in sizes)), (ObservationLikelihood(0.5), observation / sum(o for _, o in sizes))):
            if share == 0:
                continue
            alone, found = step([term], [one])
            loss += share * found["policy"] if term.name == "policy" else 0
            total = {name: total.get(name, 0) + share * value for name, value in alone.items()}
    same(total, whole)
    np.testing.assert_allclose(loss, metrics["policy"], rtol=1e-5)


def test_packed_episodes_see_themselves_only() -> None:
    batch = tiny.sequences(8)
    learner = make([Likelihood()])
    for budget in (1, 50, 10**6):
        learner.batch_tokens = budget
        found = learner.logprobs(batch, frozenset({REPLY, OBSERVATION}))
        for one in batch:
            mine = np.isin(one.role, [REPLY, OBSERVATION])
            full = np.concatenate([[0.0], tiny.reference_logprobs(learner.model, one.ids).numpy()])
            np.testing.assert_allclose(found[one.episode_id][mine], full[mine], atol=1e-5)
            assert not found[one.episode_id][~mine].any()


def test_the_loss_is_the_published_formula_in_both_means() -> None:
    batch = near(tiny.sequences(6))
    model = tiny.model()
    losses: list[list[float]] = []
    kl: list[float] = []
    for one in batch:
        logp = np.concatenate([[0.0], tiny.reference_logprobs(model, one.ids).numpy()])
        losses.append([])
        for k in np.flatnonzero(one.role == REPLY):
            a, r = one.advantages[one.step[k]], np.exp(logp[k] - one.old_logprobs[k])
            losses[-1].append(max(-r * a, -np.clip(r, 0.8, 1.28) * a))
            d = one.reference_logprobs[k] - logp[k]
            kl.append(np.exp(d) - d - 1)
    _, metrics = step([surrogate(), ReferenceKL(0.1)], batch)
    np.testing.assert_allclose([metrics["policy"], metrics["reference_kl"]], [np.mean(np.concatenate(losses)), np.mean(kl)], rtol=1e-4)
    _, metrics = step([surrogate(mean="episode")], batch)
    np.testing.assert_allclose(metrics["policy"], np.mean([np.mean(values) for values in losses]), rtol=1e-4)


def test_one_term_does_not_dilute_another() -> None:
    batch = near(tiny.sequences(8))
    reply, _ = step([surrogate()], batch)
    observed, _ = step([ObservationLikelihood(0.3)], batch)
    both, metrics = step([surrogate(), ObservationLikelihood(0.3)], batch)
    same({name: reply[name] + observed[name] for name in reply}, both)
    tokens = sum(one.n_observation for one in batch)
    learner = make([Likelihood()])
    total = sum(v.sum() for v in learner.logprobs(batch, frozenset({OBSERVATION})).values())
    np.testing.assert_allclose(metrics["observation"], -total / tokens, rtol=1e-4)


def test_a_term_of_weight_zero_leaves_the_gradients_bit_identical() -> None:
    batch = near(tiny.sequences(8))
    alone, _ = step([surrogate()], batch)
    with_zero, _ = step([surrogate(), ObservationLikelihood(0.0), ReferenceKL(0.0)], batch)
    assert all(torch.equal(alone[name], with_zero[name]) for name in alone)


def test_silent_groups_give_exactly_nothing_but_count() -> None:
    batch = near(tiny.sequences(8))
    silent = [replace(one, silent=True) for one in batch[:4]]
    terms = [surrogate(), ReferenceKL(0.5)]
    with_silent, _ = step(terms, silent + batch[4:])
    others = [replace(one, ids=one.ids[::-1].copy(), advantages=one.advantages * 100) for one in silent]
    assert all(torch.equal(with_silent[name], value) for name, value in step(terms, others + batch[4:])[0].items())
    share = sum(one.n_reply for one in batch[4:]) / sum(one.n_reply for one in batch)
    loud, _ = step([surrogate(), ReferenceKL(0.5)], batch[4:])
    mixed, _ = step([surrogate(), ReferenceKL(0.5)], silent + batch[4:])
    same({name: value * share for name, value in loud.items()}, mixed)


def test_silence_is_a_matter_of_the_policy_term_and_its_kl_alone() -> None:
    batch = near(tiny.sequences(8))
    silent = [replace(one, silent=True) for one in batch]
    observed, metrics = step([surrogate(), ReferenceKL(0.5), ObservationLikelihood(0.3)], silent)
    alone, _ = step([ObservationLikelihood(0.3)], batch)
    same(alone, observed)
    assert metrics["policy"] == metrics["reference_kl"] == 0
    half, _ = step([surrogate(), ObservationLikelihood(0.3)], silent[:4] + batch[4:])
    policy, _ = step([surrogate()], silent[:4] + batch[4:])
    same({name: policy[name] + alone[name] for name in policy}, half)


def test_what_no_term_wants_costs_no_pass() -> None:
    batch = near(tiny.sequences(8))
    batch = [replace(one, silent=number % 2 == 0) for number, one in enumerate(batch)]
    for terms, wanted in (
        ([surrogate(), ReferenceKL(0.5)], [one for one in batch if not one.silent]),
        ([surrogate(), ObservationLikelihood(0.3)], [one for one in batch if not one.silent or one.n_observation]),
    ):
        before = CLOCK.counts["tokens_learned"]
        step(terms, batch)
        assert CLOCK.counts["tokens_learned"] - before == sum(len(one.ids) for one in wanted)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_batch_of_silent_groups_changes_no_weight_and_is_no_skipped_step(optimizer: str) -> None:
    learner = make([surrogate(), ReferenceKL(0.5)], optimizer=optimizer)
    batch = near(tiny.sequences(8))
    learner.update(batch, 1e-3)  # momentum that must not move anything
    before = tiny.weights(learner.model)
    update = learner.update([replace(one, silent=True) for one in batch], 1e-3)
    assert all(torch.equal(value, before[name]) for name, value in tiny.weights(learner.model).items())
    assert not update.skipped and update.metrics["grad_norm"] == 0.0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_update_changes_every_weight(optimizer: str) -> None:
    learner = make([surrogate(), ObservationLikelihood(0.1)], optimizer=optimizer)
    before = tiny.weights(learner.model)
    update = learner.update(near(tiny.sequences(8)), 1e-3)
    assert not update.skipped and update.metrics["grad_norm"] > 0
    assert all(not torch.equal(value, before[name]) for name, value in tiny.weights(learner.model).items())


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30, 1e8])
def test_a_step_that_is_not_finite_or_explodes_is_skipped_and_the_next_is_as_if_it_had_not_been(bad: float) -> None:
    batch = near(tiny.sequences(4))
    broken = copy.deepcopy(batch)
    broken[1].advantages[0] = bad
    hit, clean = make([surrogate()], max_grad_norm=1.0), make([surrogate()], max_grad_norm=1.0)
    before = tiny.weights(hit.model)
    update = hit.update(broken, 1e-3)
    assert update.skipped
    assert all(torch.equal(value, before[name]) for name, value in tiny.weights(hit.model).items())
    assert not hit.update(batch, 1e-3).skipped and not clean.update(batch, 1e-3).skipped
    assert all(torch.equal(value, tiny.weights(clean.model)[name]) for name, value in tiny.weights(hit.model).items())


def test_what_has_exploded_is_a_setting() -> None:
    batch = near(tiny.sequences(4))
    norm = make([surrogate()]).update(batch, 0.0).metrics["grad_norm"]
    for ratio, skipped in ((norm / 0.01 * 1.1, False), (norm / 0.01 * 0.9, True)):
        assert make([surrogate()], max_grad_norm=0.01, max_grad_norm_ratio=ratio).update(batch, 1e-3).skipped is skipped


def test_gradients_are_clipped_to_the_setting_and_reported_before_it() -> None:
    batch = near(tiny.sequences(8))
    for limit, lr in ((1e6, 1e-3), (0.01, 1e-3)):
        learner = make([surrogate()], max_grad_norm=limit)
        norms: list[float] = []
        for optimizer in learner.optimizers:
            optimizer.step = lambda: norms.append(float(torch.stack([g.norm() for g in tiny.gradients(learner).values()]).norm()))
        update = learner.update(batch, lr)
        np.testing.assert_allclose(norms[0], min(limit, update.metrics["grad_norm"]), rtol=1e-3)
        assert update.metrics["grad_norm"] > 0.01


def test_the_learning_rate_is_that_of_the_call() -> None:
    batch = near(tiny.sequences(4))
    moved = []
    for lr in (0.0, 1e-4, 1e-2):
        learner = make([surrogate()])
        before = tiny.weights(learner.model)
        learner.update(batch, lr)
        moved.append(sum(float((value - before[name]).abs().sum()) for name, value in tiny.weights(learner.model).items()))
    assert moved[0] == 0 < moved[1] < moved[2]


@pytest.mark.parametrize("changes", [{"low": 0.01}, {"high": 0.01}, {"dual": 1.05}, {"mean": "episode"}, {"level": "step_sum"},
                                     {"level": "step_mean"}, {"weight": 0.5}])
def test_every_setting_of_the_surrogate_has_an_effect(changes: dict) -> None:
    batch = near(tiny.sequences(8), shift=0.4)
    plain, _ = step([surrogate()], batch)
    other, _ = step([surrogate(**changes)], batch)
    assert any(not torch.allclose(plain[name], other[name], rtol=1e-3, atol=1e-8) for name in plain)


def test_kl_pulls_towards_the_reference_with_its_weight() -> None:
    batch = near(tiny.sequences(8))
    small, _ = step([ReferenceKL(0.1)], batch)
    large, _ = step([ReferenceKL(0.2)], batch)
    same({name: 2 * value for name, value in small.items()}, large)
    learner = make([ReferenceKL(1.0)])
    values = [learner.update(batch, 1e-3).metrics["reference_kl"] for _ in range(8)]
    assert values[-1] < 0.5 * values[0]


def test_kl_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="reference"):
        make([ReferenceKL(0.1)]).update(tiny.sequences(2), 1e-3)


@pytest.mark.parametrize("t", [0, 1, 2])
def test_an_advantage_at_any_step_reaches_the_loss_and_raises_its_own_tokens_alone(t: int) -> None:
    [one] = [s for s in near(tiny.sequences(30)) if len(s.advantages) >= 3][:1]
    one = replace(one, advantages=np.zeros_like(one.advantages))
    one.advantages[t] = 1.0
    learner = make([surrogate()])
    before = learner.logprobs([one])[one.episode_id]
    learner.update([one], 1e-3)
    after = learner.logprobs([one])[one.episode_id]
    mine = (one.role == REPLY) & (one.step == t)
    assert (after - before)[mine].sum() > 0.01


def test_ratios_are_one_before_the_first_update_and_move_after_it() -> None:
    batch = tiny.sequences(8)
    for temperature in (0.7, 1.0, 1.5):
        learner = make([surrogate()], temperature=temperature, batch_tokens=60)
        found = learner.logprobs(batch)
        played = [replace(one, old_logprobs=found[one.episode_id]) for one in batch]
        for one in played:
            mine = one.role == REPLY
            full = np.concatenate([[0.0], tiny.reference_logprobs(tiny.model(), one.ids, temperature).numpy()])
            np.testing.assert_allclose(one.old_logprobs[mine], full[mine], atol=1e-4)
        first, second = (learner.update(played, 1e-3).metrics for _ in range(2))
        assert abs(first["ratio_deviation"]) < 1e-5 and first["clip_fraction"] == 0 and abs(first["kl"]) < 1e-5
        assert second["kl"] > 1e-6


def test_metrics_are_means_over_the_batch() -> None:
    batch = near(tiny.sequences(8), shift=0.4)
    model, clipped, tokens = tiny.model(), 0, 0
    for one in batch:
        logp = np.concatenate([[0.0], tiny.reference_logprobs(model, one.ids).numpy()])
        for k in np.flatnonzero(one.role == REPLY):
            a, r = one.advantages[one.step[k]], np.exp(logp[k] - one.old_logprobs[k])
            clipped += (a > 0 and r > 1.28) or (a < 0 and r < 0.8)
            tokens += 1
    assert 0 < clipped < tokens
    np.testing.assert_allclose(step([surrogate()], batch, batch_tokens=60)[1]["clip_fraction"], clipped / tokens, rtol=1e-5)


def test_autocast_computes_in_bfloat16_and_leaves_weights_scores_and_decay_in_fp32() -> None:
    batch = near(tiny.sequences(8))
    plain, _ = step([Likelihood()], batch)
    lossy, _ = step([Likelihood()], batch, autocast="bf16")
    for name, value in plain.items():
        assert lossy[name].dtype == torch.float32 and not torch.equal(lossy[name], value)
        assert torch.nn.functional.cosine_similarity(lossy[name].flatten(), value.flatten(), dim=0) > 0.98
    exact, learner = make([Likelihood()]), make([Likelihood()], autocast="bf16")
    assert all(np.array_equal(learner.logprobs(batch)[name], value) for name, value in exact.logprobs(batch).items())
    learner.update(batch, 1e-3)
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    states = [value for optimizer in learner.optimizers for state in optimizer.state_dict()["state"].values() for value in state.values()]
    assert {value.dtype for value in states if torch.is_tensor(value)} == {torch.float32}
    assert all(group["weight_decay"] == 0 for optimizer in learner.optimizers for group in optimizer.param_groups)


def test_where_the_time_of_learning_goes_is_on_the_clock() -> None:
    CLOCK.clear()
    learner, batch = make([Likelihood()]), tiny.sequences(6)
    learner.update(batch, 1e-3)
    learner.logprobs(batch[:2])
    report = CLOCK.report()
    assert report["counts"]["tokens_learned"] == sum(len(one.ids) for one in batch)
    assert report["seconds"]["learning"] > 0 and report["seconds"]["scoring"] > 0 and report["learning_tokens_per_s"] > 0
