"""An online iteration: credit reaches the steps, errors are left out, what is silent is counted."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from ratchet.episodes.files import table_of
from ratchet.errors import RatchetError
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import REPLY
from ratchet.learners.online import Credited, credited, learn, minibatches, speaking_groups
from ratchet.learners.safety import check_agreement, check_skipped, sampled_agreement
from ratchet.losses.clipped_surrogate import ClippedSurrogate
from ratchet.losses.kl import ReferenceKL
from tests.models import tiny


def tables(outcomes: dict[str, list[Any]]) -> tuple[pa.Table, pa.Table]:
    """`outcomes`: by group the scores of its episodes; a text is an error."""
    rng = np.random.default_rng(0)
    episodes, steps = [], []
    for group, scores in outcomes.items():
        for sample, score in enumerate(scores):
            name, n = f"{group}{sample}", int(rng.integers(1, 4))
            failed = isinstance(score, str)
            episodes.append({"episode_id": name, "group_id": group, "n_steps": n, "solved": score == 1.0, "score": 0.0 if failed else score,
                             "error": score if failed else None})
            for t in range(n):
                reply = rng.integers(5, 60, 4).tolist()
                steps.append({"episode_id": name, "t": t, "prompt_ids": rng.integers(5, 60, 3).tolist(), "reply_ids": reply, "logprobs": [-4.0] * 4})
    return table_of("episodes", episodes), table_of("steps", steps)


def learner(batch_tokens: int = 500, autocast: str = "none") -> ActorLearner:
    terms = [ClippedSurrogate(low=0.2, high=0.28)]
    return ActorLearner(tiny.model(), terms, optimizer="adamw", batch_tokens=batch_tokens, max_grad_norm=1.0, autocast=autocast)


OUTCOMES = {"a": [1.0, 0.0, 0.5], "b": [0.2, 0.2], "c": [1.0, "crash: x", 0.0], "d": ["crash: y"]}


def test_errors_are_left_out_and_groups_without_spread_are_silent_and_counted() -> None:
    found = credited(*tables(OUTCOMES), credit="grpo", reward="solved")
    assert [one.episode_id for one in found.sequences] == ["a0", "a1", "a2", "b0", "b1", "c0", "c2"]
    assert [one.episode_id for one in found.sequences if one.silent] == ["b0", "b1"]
    assert (found.groups, found.zero_variance_groups) == (3, 1)
    by = {one.episode_id: one.advantages for one in found.sequences}
    assert (by["a0"] > 0).all() and (by["a1"] < 0).all() and not by["b0"].any()
    np.testing.assert_allclose([by["c0"][0], by["c2"][0]], [1, -1], rtol=1e-5)  # the crashed one is no zero


def test_the_reward_is_the_setting() -> None:
    by_score = {one.episode_id: one.advantages[0] for one in credited(*tables(OUTCOMES), credit="grpo", reward="score").sequences}
    by_outcome = {one.episode_id: one.advantages[0] for one in credited(*tables(OUTCOMES), credit="grpo", reward="solved").sequences}
    assert abs(by_score["a2"]) < 1e-6 and by_outcome["a2"] == by_outcome["a1"]


def test_groups_that_say_something_are_found_and_can_be_the_only_ones_to_learn_from() -> None:
    episodes, steps = tables(OUTCOMES)
    assert speaking_groups(episodes, reward="solved") == {"a", "c"}
    assert speaking_groups(*tables({"a": [0.5, 0.25], "b": [1.0, "crash: x"]})[:1], reward="score") == {"a"}
    found = credited(episodes, steps, credit="grpo", reward="solved", only={"c"})
    assert [one.episode_id for one in found.sequences] == ["c0", "c2"] and (found.groups, found.zero_variance_groups) == (1, 0)


def test_the_share_that_says_nothing_and_the_outcomes_are_known() -> None:
    found = credited(*tables(OUTCOMES), credit="grpo", reward="solved")
    np.testing.assert_allclose(found.silent_share, 2 / 7)
    assert [one.episode_id for one in found.sequences if one.solved] == ["a0", "c0"] and {one.weight for one in found.sequences} == {1.0}
    assert Credited([], 0, 0, [], []).silent_share == 0


def test_balance_weighs_the_successes_of_each_stratum_by_its_share_of_the_tasks() -> None:
    """Three of four tasks need action and are solved once in all; the last one is solved by doing nothing, each time."""
    episodes, steps = tables({"a": [1.0, 0.0], "b": [0.0, 0.0], "c": [0.0, 0.0], "d": [1.0, 1.0]})
    kinds = pa.array(["idle" if group == "d" else "act" for group in episodes["group_id"].to_pylist()])
    episodes = episodes.set_column(episodes.schema.get_field_index("stratum"), "stratum", kinds)
    plain = credited(episodes, steps, credit="grpo", reward="solved")
    found = credited(episodes, steps, credit="grpo", reward="solved", balance="stratum")

    def share(batch: Credited, weigh: bool) -> float:
        mass = {kind: sum(one.n_reply * (one.weight if weigh else 1) for one, own in zip(batch.sequences, batch.strata, strict=True)
                          if one.solved and own == kind) for kind in ("act", "idle")}
        return mass["act"] / sum(mass.values())

    assert share(plain, True) < 0.5
    np.testing.assert_allclose(share(found, True), 0.75)
    solved = [one for one in found.sequences if one.solved]
    np.testing.assert_allclose(sum(one.weight * one.n_reply for one in solved), sum(one.n_reply for one in solved))
    assert {one.weight for one in found.sequences if not one.solved} == {1.0}
    assert all(one.advantages.tolist() == other.advantages.tolist() for one, other in zip(plain.sequences, found.sequences, strict=True))


def test_minibatches_deal_every_episode_once() -> None:
    sequences = tiny.sequences(7)
    for steps in (1, 2, 3, 7, 20):
        parts = minibatches(sequences, steps)
        assert len(parts) == min(steps, 7) and sorted(one.episode_id for part in parts for one in part) == sorted(one.episode_id for one in sequences)


def test_learning_moves_towards_what_won_and_reports() -> None:
    batch, one = credited(*tables(OUTCOMES), credit="grpo", reward="solved"), learner()
    before = one.logprobs(batch.sequences)
    for sequence in batch.sequences:
        sequence.old_logprobs = before[sequence.episode_id]
    metrics = learn(one, batch, steps=2, lr=1e-3, reference=None)
    assert metrics["logprob_max_diff"] < 1e-5 and metrics["skipped_steps"] == 0
    gain = {name: (values - before[name]).sum() for name, values in one.logprobs(batch.sequences).items()}
    assert gain["a0"] > 0 > gain["a1"] and gain["c0"] > 0 > gain["c2"]


def sampled(one: ActorLearner, batch: Credited) -> Credited:
    """`batch` as if `one` had sampled it; what is no reply has a wrong log-prob, which must not matter."""
    found = one.logprobs(batch.sequences)
    for sequence in batch.sequences:
        sequence.old_logprobs = found[sequence.episode_id] + np.float32(0.25) * (sequence.role != REPLY)
    return batch


def test_all_that_the_first_step_learns_from_is_compared_with_its_sampler_in_passing() -> None:
    one = learner(batch_tokens=20)
    batch = sampled(one, credited(*tables({"a": [1.0, 0.0] * 10, "b": [1.0, 1.0]}), credit="grpo", reward="solved"))
    calls: list[int] = []
    one.logprobs = lambda *_: calls.append(1) or {}  # type: ignore[method-assign]
    metrics = learn(one, batch, steps=2, lr=1e-3, reference=None)
    assert metrics["logprob_max_diff"] < 1e-5 and metrics["logprob_mean_diff"] <= metrics["logprob_max_diff"] and not calls
    first = [sequence for sequence in batch.sequences[::2] if not sequence.silent]
    assert metrics["logprob_tokens"] == sum(sequence.n_reply for sequence in first) and "agreement" not in metrics
    other = learner(batch_tokens=20)
    batch = sampled(other, batch)
    first[-1].old_logprobs[np.flatnonzero(first[-1].role == REPLY)[0]] += 0.5  # a single token of the last one
    metrics = learn(other, batch, steps=2, lr=1e-3, reference=None)
    np.testing.assert_allclose(metrics["logprob_max_diff"], 0.5, rtol=1e-4)
    np.testing.assert_allclose(metrics["logprob_mean_diff"], 0.5 / metrics["logprob_tokens"], rtol=1e-2)
    assert len(other.terms) == 1


@pytest.mark.parametrize("autocast", ["none", "bf16"])
def test_where_the_pass_cannot_tell_a_sample_is_compared_in_full_precision(autocast: str) -> None:
    one = learner(autocast=autocast)
    outcomes: dict[str, list[Any]] = OUTCOMES if autocast == "bf16" else {"a": [1.0, 1.0], "b": [0.0, 0.0]}
    batch = sampled(one, credited(*tables(outcomes), credit="grpo", reward="solved"))
    batch.sequences[1].old_logprobs[batch.sequences[1].role == REPLY] += 0.5
    metrics = learn(one, batch, steps=1, lr=1e-3, reference=None)
    np.testing.assert_allclose(metrics["logprob_max_diff"], 0.5, rtol=1e-4)


def test_that_sample_is_as_many_sequences_as_its_tokens_hold_and_one_at_least() -> None:
    one = learner(autocast="bf16")
    sequences = sampled(one, credited(*tables(OUTCOMES), credit="grpo", reward="solved")).sequences
    longest, each = max(len(sequence.ids) for sequence in sequences), [sequence.n_reply for sequence in sequences]
    assert sampled_agreement(one, sequences, tokens=1).tokens == each[0]
    assert sampled_agreement(one, sequences, tokens=2 * longest).tokens in (sum(each[:2]), sum(each[:3]))
    assert sampled_agreement(one, sequences, most=3).tokens == sum(each[:3])


def test_a_difference_that_is_no_number_is_above_every_limit() -> None:
    one = learner()
    batch = sampled(one, credited(*tables(OUTCOMES), credit="grpo", reward="solved"))
    batch.sequences[0].old_logprobs[batch.sequences[0].role == REPLY] = np.nan
    found = learn(one, batch, steps=1, lr=1e-3, reference=None)["logprob_max_diff"]
    for wrong in (found, 0.02, np.inf):
        with pytest.raises(RatchetError, match=r"above evolve_online\.logprob_limit=0\.01"):
            check_agreement(wrong, 0.01)
    check_agreement(0.01, 0.01)


def test_skipped_steps_are_counted_against_all_that_a_stage_will_take() -> None:
    check_skipped(2, 40, 0.05, "evolve_online")
    check_skipped(40, 40, 1.0, "evolve_online")
    with pytest.raises(RatchetError, match=r"^3 of 40 optimiser steps .* lower evolve_online\.lr"):
        check_skipped(3, 40, 0.05, "evolve_online")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_skipped_step_is_counted_and_its_metrics_can_be_written(bad: float) -> None:
    batch, one = credited(*tables(OUTCOMES), credit="grpo", reward="solved"), learner()
    batch.sequences[0].advantages[:] = bad
    metrics = learn(one, batch, steps=2, lr=1e-3, reference=None)
    assert metrics["skipped_steps"] == 1
    assert metrics["grad_norm"] > 0
    json.dumps(metrics, allow_nan=False)
    assert all(bool(torch.isfinite(value).all()) for value in tiny.weights(one.model).values())


def test_silent_episodes_need_no_reference_and_take_no_gradient_from_it() -> None:
    def gradient_step(reference: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        batch = credited(*tables(OUTCOMES), credit="grpo", reward="solved")
        terms = [ClippedSurrogate(low=0.2, high=0.28), ReferenceKL(0.5)]
        one = ActorLearner(tiny.model(), terms, optimizer="adamw", batch_tokens=500, max_grad_norm=1.0)
        learn(one, batch, steps=1, lr=1e-2, reference=reference)
        return tiny.weights(one.model)

    batch = credited(*tables(OUTCOMES), credit="grpo", reward="solved")
    loud = {one.episode_id: one.old_logprobs for one in batch.sequences if not one.silent}
    found, whole = gradient_step(loud), gradient_step({**loud, **{one.episode_id: one.old_logprobs - 3 for one in batch.sequences if one.silent}})
    assert all(torch.equal(value, whole[name]) for name, value in found.items())
    with pytest.raises(ValueError, match="not silent"):
        gradient_step({})


def test_an_iteration_of_silent_groups_changes_nothing_and_skips_nothing() -> None:
    batch, one = credited(*tables({"a": [1.0, 1.0], "b": [0.0, 0.0]}), credit="grpo", reward="solved"), learner()
    before = tiny.weights(one.model)
    metrics = learn(one, batch, steps=2, lr=1e-3, reference=None)
    assert metrics["skipped_steps"] == 0 and batch.zero_variance_groups == batch.groups == 2
    assert all(torch.equal(value, before[name]) for name, value in tiny.weights(one.model).items())
