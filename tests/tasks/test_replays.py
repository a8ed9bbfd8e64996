"""The store of successes on its way through the rounds, and what an iteration learns from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.learners.forecast import Forecaster
from ratchet.learners.online import Credited, credited
from ratchet.losses.forecast import Forecast
from tasks.replays import replay_folder, store_of, with_earlier_successes, write_store
from tests.learners.test_replay import learner, tables
from tests.models import tiny


def stage(root: Path, round: int, share: float = 0.3, weight: float = 0.01) -> Any:
    forecast = SimpleNamespace(weight=weight, replay=SimpleNamespace(share=share, max_age=1))
    rounds = {str(key): SimpleNamespace(prev=str(key - 1)) for key in range(1, 5)}
    settings = SimpleNamespace(evolve_online=SimpleNamespace(forecast=forecast), rounds=rounds)
    return SimpleNamespace(key=str(round), settings=settings, path=lambda relative: root / relative, out=lambda relative: root / relative)


def test_each_round_takes_up_what_the_one_before_left_and_forgets_what_is_old(tmp_path: Path) -> None:
    write_json(tmp_path / replay_folder(0) / "skipped.json", {"skipped": "no round was played yet"})
    for round in (1, 2, 3):
        store = store_of(stage(tmp_path, round), [tables({f"task {round}": [True, False]}, round=round)])
        assert store is not None
        write_store(stage(tmp_path, round), store)
    assert sorted(store.episodes["task_id"].to_pylist()) == ["task 2", "task 3"]


def test_a_resumed_round_has_the_store_of_one_that_was_not_disturbed(tmp_path: Path) -> None:
    write_json(tmp_path / replay_folder(0) / "skipped.json", {"skipped": "no round was played yet"})
    played = [tables({"a": [True], "b": [True, True]}, iteration) for iteration in (1, 2, 3)]
    whole, resumed = store_of(stage(tmp_path, 1), played), store_of(stage(tmp_path, 1), played[:2])
    assert whole is not None and resumed is not None
    resumed.add(*played[2])
    assert resumed.episodes.equals(whole.episodes) and resumed.steps.equals(whole.steps)


@pytest.mark.parametrize("off", [{"share": 0.0}, {"weight": 0.0}])
def test_where_replay_is_off_nothing_is_kept_and_the_out_says_so(tmp_path: Path, off: dict[str, float]) -> None:
    one = stage(tmp_path, 1, **off)
    assert store_of(one, []) is None
    write_store(one, None)
    assert "off" in read_json(tmp_path / replay_folder(1) / "skipped.json")["skipped"]
    episodes, steps = tables({"a": [True, False]})
    batch = credited(episodes, steps, credit="grpo", reward="solved")
    same = with_earlier_successes(None, batch, episodes, steps, learner(), mixed_only=False, divisor=None)
    assert same[0] is batch and same[1] is steps and same[2:] == ({}, {})


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / replay_folder(0)
    folder.mkdir(parents=True)
    (folder / "episodes.parquet").write_bytes(b"no parquet")
    with pytest.raises(RatchetError, match="damaged Parquet file"):
        store_of(stage(tmp_path, 1), [])


def replayed(outcomes: dict[str, list[bool]], **norm: Any) -> tuple[Credited, Credited, Any, dict[str, float], dict[str, float]]:
    from ratchet.learners.replay import ReplayStore

    store = ReplayStore(share=0.3, max_age=3)
    store.add(*tables({"a": [True, True], "b": [True, False]}, logprob=-100.0))
    episodes, steps = tables(outcomes, iteration=2)
    batch = credited(episodes, steps, credit="grpo", reward="solved")
    return batch, *with_earlier_successes(store, batch, episodes, steps, learner(), **{"mixed_only": False, "divisor": None, **norm})


def test_a_group_without_success_forecasts_its_tasks_earlier_ones_and_the_number_of_groups_stays() -> None:
    batch, more, steps, weights, metrics = replayed({"a": [False, False], "c": [True, False]})
    added = more.sequences[len(batch.sequences) :]
    assert [one.episode_id for one in added] == ["a-1-1-0", "a-1-1-1"] == sorted(weights) and more.group_ids[-2:] == ["1/2/a"] * 2
    assert metrics["replayed_episodes"] == 2 and batch.sequences == more.sequences[:4]
    forecaster = Forecaster(tiny.template(), horizon=0, gate="wins", samples=2, seed=1, context=256)
    forecaster._action = lambda ids: ids  # type: ignore[method-assign]  # all of a reply is its action here
    forecaster.attach(more.sequences, more.group_ids, steps, None, weights)
    by = {one.episode_id: one for one in more.sequences}
    assert [name for name, one in by.items() if one.branches] == ["c-1-2-0", "a-1-1-0", "a-1-1-1"]
    mass = {name: sum(branch.weight * (branch.role == 3).sum() for branch in one.branches) for name, one in by.items()}
    assert mass["c-1-2-0"] == pytest.approx(1.0)
    assert mass["a-1-1-0"] + mass["a-1-1-1"] == pytest.approx(0.3 / 0.7), "at most its share of the loss"
    assert Forecast(0.1).denominator(more.sequences) == pytest.approx(2.0), "two groups, as without"


def test_what_own_successes_weigh_depends_on_gate_and_norm() -> None:
    for norm, own in (({"mixed_only": True}, 1.0), ({"mixed_only": False}, 2.0), ({"divisor": 4}, 0.75)):
        *_, weights, metrics = replayed({"a": [False, False], "c": [True, False], "d": [True, True]}, **norm)
        mass = sum(weights.values()) / norm.get("divisor", 2)
        assert mass == pytest.approx(min(0.3 / 0.7 * own, 2 / norm.get("divisor", 2))), norm
        assert metrics["replay_scale"] <= 1
