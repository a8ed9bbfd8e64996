"""Success replay: what is kept and for how long, what it weighs, and that nothing but the forecast term hears of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.episodes.files import table_of
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import OBSERVATION, REPLY
from ratchet.learners.replay import KEPT, ReplayStore, own_mass, replay_weight, scale_to_share
from ratchet.losses.clipped_surrogate import ClippedSurrogate
from ratchet.losses.kl import ReferenceKL
from ratchet.losses.observation import ObservationLikelihood
from tests.models import tiny

LOGPROB = -4.0


def tables(outcomes: dict[str, list[bool]], iteration: int = 1, round: int = 1, logprob: float = LOGPROB) -> tuple[pa.Table, pa.Table]:
    """By task the outcomes of its group's episodes, two steps each."""
    rng = np.random.default_rng(iteration)
    episodes, steps = [], []
    for task, solved in outcomes.items():
        for sample, won in enumerate(solved):
            name = f"{task}-{round}-{iteration}-{sample}"
            row: dict[str, Any] = {"episode_id": name, "task_id": task, "group_id": f"{round}/{iteration}/{task}", "round": round}
            episodes.append({**row, "iteration": iteration, "sample": sample, "solved": won, "n_steps": 2, "tokenizer_id": "t"})
            for t in range(2):
                ids = {"prompt_ids": rng.integers(5, 60, 3).tolist(), "reply_ids": rng.integers(5, 60, 4).tolist()}
                steps.append({"episode_id": name, "t": t, **ids, "logprobs": [logprob] * 4, "valid": True})
    return table_of("episodes", episodes), table_of("steps", steps)


def learner() -> ActorLearner:
    terms = [ClippedSurrogate(low=0.2, high=0.28), ReferenceKL(0.1), ObservationLikelihood(0.05)]
    return ActorLearner(tiny.model(), terms, optimizer="adamw", batch_tokens=500, max_grad_norm=1.0)


@pytest.fixture
def store() -> ReplayStore:
    one = ReplayStore(share=0.3, max_age=3)
    one.add(*tables({"a": [True, False], "b": [False, False], "c": [True, True]}))
    return one


def names(store: ReplayStore) -> list[str]:
    return store.episodes["episode_id"].to_pylist()


def test_only_successes_are_kept_with_all_their_steps(store: ReplayStore) -> None:
    assert names(store) == ["a-1-1-0", "c-1-1-0", "c-1-1-1"]
    assert store.steps["episode_id"].to_pylist() == [name for name in names(store) for _ in range(2)]


def test_the_newest_successes_of_a_task_push_out_the_oldest() -> None:
    store = ReplayStore(share=0.3, max_age=3)
    for iteration in range(1, 4):
        store.add(*tables({"a": [True, True], "b": [True]}, iteration))
    assert KEPT == 4 and names(store) == ["a-1-2-0", "a-1-2-1", "a-1-3-0", "a-1-3-1", "b-1-1-0", "b-1-2-0", "b-1-3-0"]


def test_what_is_older_than_its_age_in_rounds_is_forgotten(store: ReplayStore) -> None:
    store.add(*tables({"d": [True]}, round=2))
    store.forget(4)
    assert len(names(store)) == 4, "three rounds old"
    store.forget(5)
    assert names(store) == ["d-2-1-0"] == sorted(set(store.steps["episode_id"].to_pylist()))


def test_a_store_is_written_and_read_as_it_is_in_any_order_of_rows(store: ReplayStore, tmp_path: Path) -> None:
    store.write(tmp_path / "x")
    again = ReplayStore(share=0.3, max_age=3)
    again.read(tmp_path / "x")
    assert again.episodes.equals(store.episodes) and again.steps.equals(store.steps)
    again.write(tmp_path / "y")
    assert all((tmp_path / "x" / name).read_bytes() == (tmp_path / "y" / name).read_bytes() for name in ("episodes.parquet", "steps.parquet"))


def test_groups_without_a_success_get_their_tasks_earlier_ones_and_no_other_group(store: ReplayStore) -> None:
    now = tables({"a": [False, False], "b": [False, False], "c": [True, False], "e": [False]}, iteration=2)[0]
    found = store.choose(now, learner(), own=1.0)
    assert [one.episode_id for one in found.sequences] == ["a-1-1-0"] and found.groups == ["1/2/a"]
    assert found.steps["episode_id"].to_pylist() == ["a-1-1-0"] * 2
    assert found.metrics()["replayed_groups"] == 1


def test_a_group_that_failed_by_errors_alone_is_no_group_without_success(store: ReplayStore) -> None:
    now = tables({"a": [False]}, iteration=2)[0]
    now = now.set_column(now.schema.get_field_index("error"), "error", pa.array(["crash: x"]))
    assert store.choose(now, learner(), own=1.0).sequences == []


def test_episodes_in_other_tokens_are_left_out(store: ReplayStore) -> None:
    now = tables({"a": [False]}, iteration=2)[0]
    now = now.set_column(now.schema.get_field_index("tokenizer_id"), "tokenizer_id", pa.array(["other"]))
    assert store.choose(now, learner(), own=1.0).sequences == []


def test_a_weight_is_how_much_less_likely_the_policy_has_made_it_and_never_above_one() -> None:
    assert replay_weight(np.array([-2.0, -2.0]), np.array([-1.0, -2.0])) == pytest.approx(np.exp(-0.5))
    assert replay_weight(np.array([-1.0]), np.array([-2.0])) == 1.0


def test_weights_are_of_the_learner_as_it_is_over_the_replies_alone(store: ReplayStore) -> None:
    now, own = tables({"a": [False]}, iteration=2)[0], learner()
    found = store.choose(now, own, own=100.0)
    (one,) = found.sequences
    logp = tiny.reference_logprobs(own.model, one.ids)
    where = np.array([3, 4, 5, 6, 10, 11, 12, 13])  # 3 read, 4 written, twice
    assert found.weights["a-1-1-0"] == pytest.approx(min(1.0, np.exp(float(logp[where - 1].mean()) - LOGPROB)), rel=1e-4)
    assert found.weights["a-1-1-0"] < 1


def test_replay_is_at_most_its_share_of_the_loss(store: ReplayStore) -> None:
    store.add(*tables({"b": [True]}, logprob=-100.0), )  # so likely now that its weight is 1
    store.add(*tables({"a": [True]}, iteration=2, logprob=-100.0))
    now = tables({"a": [False], "b": [False], "c": [True]}, iteration=3)[0]
    for own, divisor in ((1.0, None), (0.5, 4), (50.0, None)):
        found = store.choose(now, learner(), own=own, divisor=divisor)
        by_group = {group: [w for w, g in zip(found.weights.values(), found.groups, strict=True) if g == group] for group in found.groups}
        mass = sum(sum(weights) / (divisor or len(weights)) for weights in by_group.values())
        assert mass <= 0.3 * (mass + own) + 1e-9
        assert (found.scale == 1.0) == (own == 50.0) and (found.scale == 1.0 or mass == pytest.approx(0.3 * (mass + own)))


def test_where_there_is_nothing_of_ones_own_replay_is_nothing_too() -> None:
    assert scale_to_share(0.0, 2.0, 0.3) == 0.0 and scale_to_share(7.0, 3.0, 0.3) == pytest.approx(1.0) and scale_to_share(1.0, 0.0, 0.3) == 1.0


def test_own_mass_is_one_a_group_with_success_or_its_share_by_a_constant_divisor() -> None:
    solved = {"a": [True, False], "b": [False, False], "c": [True, True]}
    assert own_mass(solved, mixed_only=False, divisor=None) == 2.0
    assert own_mass(solved, mixed_only=True, divisor=None) == 1.0
    assert own_mass(solved, mixed_only=False, divisor=2) == 1.5


def test_no_other_term_wants_a_replayed_episode_or_counts_it(store: ReplayStore) -> None:
    own = learner()
    (one,) = store.choose(tables({"a": [False]}, iteration=2)[0], own, own=1.0).sequences
    assert not own.wants(one) and one.n_reply == one.n_observation == 0 and not np.isin(one.role, [REPLY, OBSERVATION]).any()
    assert all(term.denominator([one]) == 0 for term in own.terms)


def test_replaying_successes_beside_unfiltered_forecasts_is_refused_with_the_way_out() -> None:
    from ratchet.errors import RatchetError
    from ratchet.rendering import render_run

    root, share = Path(__file__).parents[2], "evolve_online.forecast.replay.share=0.3"
    assert render_run(root, None, [share])["evolve_online"]["forecast"]["replay"] == {"share": 0.3, "max_age": 3}
    with pytest.raises(RatchetError, match=r"replay\.share: 0\.3 replays successes, and gate=all asks failures too; set gate to wins or mixed"):
        render_run(root, None, [share, "evolve_online.forecast.gate=all"])
