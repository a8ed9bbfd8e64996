"""A meter's credit in an online iteration: what it multiplies, what it leaves alone, and what is kept of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from ratchet.episodes.files import read_table
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import REPLY
from ratchet.learners.online import credited, learn
from ratchet.losses.clipped_surrogate import ClippedSurrogate
from ratchet.meter.base import make_base
from ratchet.meter.meter import Meter
from ratchet.models.build import save_model
from ratchet.settings import load, parse
from tasks.step_credit import StepCredit, step_credit
from tests.meter.fabricate import recorded
from tests.models import tiny

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def meter(tmp_path_factory: pytest.TempPathFactory) -> Meter:
    folder = tmp_path_factory.mktemp("credit")
    save_model(tiny.model(len(tiny.template().tokenizer)), tiny.tokenizer_folder(), folder / "base", {"stage": "test"})
    model, template, grammar, alike = make_base(folder / "base", folder / "words", "plain", 1)
    return Meter(model, template, grammar, "written", "ttg", alike=frozenset([template.tokenizer_id, *alike]), limit=300.0)


def batch() -> tuple[Any, pa.Table, pa.Table]:
    """Two groups of four: in the first two are solved, in the second all have one outcome."""
    rows, steps = recorded()
    for row in rows[4:]:
        row["solved"] = True
    episodes = pa.Table.from_pylist(rows)
    return credited(episodes, steps, credit="grpo", reward="solved"), episodes, steps


def staged(tmp_path: Path, **own: Any) -> Any:
    values = load(CHECKOUT / "params.yaml").model_dump(mode="json")
    values["evolve_online"]["meter"] |= {"enabled": True, "free_share": 0.5, **own}
    return SimpleNamespace(settings=parse(values), scratch=tmp_path, key="1", title="evolve_online@1", out=lambda relative: tmp_path / relative)


def test_advantages_keep_their_sign_and_their_token_weighted_mean(meter: Meter, tmp_path: Path) -> None:
    for sets in ({}, {"delta": "td", "cost": "soft", "terminal": "meter"}, {"sign_reversal": False}):
        learned, episodes, steps = batch()
        plain, _, _ = batch()
        metrics = StepCredit(staged(tmp_path, **sets), meter, None).apply(1, learned.sequences, episodes, steps)
        changed = 0
        for one, before in zip(learned.sequences, plain.sequences, strict=True):
            n = np.bincount(one.step[one.role == REPLY])
            assert np.all(np.sign(one.advantages) == np.sign(before.advantages)) and one.advantages.dtype == np.float32
            assert (n * one.advantages).sum() == pytest.approx((n * before.advantages).sum(), rel=1e-5)
            changed += not np.array_equal(one.advantages, before.advantages)
            assert one.silent == before.silent and (not one.silent or np.array_equal(one.advantages, before.advantages))
        assert changed and metrics["credit_weight_max"] <= 5 + 1e-9 and metrics["meter_free"] > 0 and 0 <= metrics["c_touched_share"] <= 1


def updated(learned: Any) -> np.ndarray:
    """All weights of an actor behind an update on these episodes."""
    actor = ActorLearner(tiny.model(len(tiny.template().tokenizer)), [ClippedSurrogate(low=0.2, high=0.28)], optimizer="adamw", batch_tokens=512, max_grad_norm=1.0)
    learn(actor, learned, steps=1, lr=1e-2, reference=None)
    return torch.cat([one.detach().flatten() for one in actor.model.parameters()]).numpy()


def test_where_every_step_weighs_the_same_an_update_is_grpos_bit_for_bit(meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a meter is off; and with one that has an opinion the update is another."""
    found = {}
    for name in ("grpo", "says nothing", "meter"):
        learned, episodes, steps = batch()
        if name != "grpo":
            with monkeypatch.context() as patch:
                if name == "says nothing":
                    patch.setattr("ratchet.credit.meter.masses", lambda change, *_, **__: np.zeros(len(change)))
                StepCredit(staged(tmp_path / name), meter, None).apply(1, learned.sequences, episodes, steps)
        found[name] = updated(learned)
    assert np.array_equal(found["grpo"], found["says nothing"]) and not np.array_equal(found["grpo"], found["meter"])


def test_what_was_said_is_kept_step_by_step_and_missed_after_a_kill(meter: Meter, tmp_path: Path) -> None:
    learned, episodes, steps = batch()
    credit = StepCredit(staged(tmp_path), meter, None)
    assert credit.missing([1]) == "the credit of iteration 1 is missing"
    credit.apply(1, learned.sequences, episodes, steps)
    assert credit.missing([1]) is None
    credit.write([1])
    kept = read_table(tmp_path / "data/rounds/1/online/meter.parquet", "meter")
    assert kept.num_rows == steps.num_rows and kept["t"].to_pylist() == steps["t"].to_pylist()
    weights = kept["weight"].to_pylist()
    silent = {one.episode_id for one in learned.sequences if one.silent}
    assert all((weight is None) == (name in silent) for name, weight in zip(kept["episode_id"].to_pylist(), weights, strict=True))
    cost = kept["cost"].to_numpy(zero_copy_only=False)
    parsed, able = kept["parsed"].to_pylist(), kept["completable"].to_pylist()
    assert all(value <= 300 for value in cost) and all(value == 300 for value, ok, one in zip(cost, parsed, able, strict=True) if not (ok and one))


def test_somebody_s_labelled_trajectories_are_judged_by_the_steps_that_have_labels(meter: Meter) -> None:
    from ratchet.evaluation.step_quality import read_process_bench
    from ratchet.meter.process_bench import deltas_of, judge_records

    records = read_process_bench(Path(__file__).with_name("process_bench.jsonl"))
    found = deltas_of(meter, records)
    assert [len(one) for one in found] == [3, 1] and all(np.isfinite(one).all() for one in found)
    told = judge_records(meter, records, records[:1])
    assert told["steps"] == 4 and told["trajectories"] == 2 and told["counts"] == {"-1": 2, "0": 1, "1": 1} and told["dead_zone"] >= 0


def test_without_a_meter_nothing_is_made_and_one_that_is_off_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ratchet.files import write_json

    stage = staged(tmp_path)
    stage.path = lambda relative: tmp_path / relative
    write_json(tmp_path / "models/rounds/1/meter/skipped.json", {"skipped": "the meter is off: it fails its gate"})
    assert step_credit(stage) is None and "every step weighs the same: the meter is off" in capsys.readouterr().out
    stage.settings = load(CHECKOUT / "params.yaml")
    assert step_credit(stage) is None


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("evolve_online", {"credit": "gigpo", "meter": {"enabled": True}}, "evolve_online.credit: gigpo gives each step an advantage of its own"),
        ("evolve_online", {"share": {"beta": 0.5}}, "evolve_online.share.beta: 0.5 leaves a part of the share to a critic"),
        ("evolve_online", {"meter": {"given": "models/x"}}, "evolve_online.meter.given: is read where the meter is enabled"),
        ("fit_meter", {"base": "nobody"}, "fit_meter.base: no actor is called 'nobody'"),
        ("fit_meter", {"form": "head"}, "sft.trainer: trl trains written answers"),
        ("fit_meter", {"split": {"sft": 0.9}}, "the three parts sum to 1.4"),
        ("fit_meter", {"prefixes": 0}, "prefixes: 0 is neither"),
    ],
)
def test_settings_that_cannot_work_together_are_refused_with_the_way_out(section: str, changes: dict, said: str) -> None:
    from ratchet.errors import RatchetError

    values = load(CHECKOUT / "params.yaml").model_dump(mode="json")
    for name in ("fit_critic", "evolve_offline"):
        values[name]["enabled"] = False
    for name, value in changes.items():
        values[section][name] = values[section][name] | value if isinstance(value, dict) else value
    with pytest.raises(RatchetError, match=said):
        parse(values)
