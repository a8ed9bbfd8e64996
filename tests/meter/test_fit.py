"""Both stages of training, what a folder keeps of a meter, and the loss that both trainers share (slow: it imports TRL)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.errors import RatchetError
from ratchet.files import write_json
from ratchet.learners.actor import ActorLearner
from ratchet.meter import fit
from ratchet.meter.base import make_base
from ratchet.meter.fit import AnswerLikelihood, Rl, Sft, chosen, examples_of, rl_with_trl, sft_with_learner, sft_with_trl
from ratchet.meter.fit_head import fit_head
from ratchet.meter.meter import CARD, Meter, check_environment
from ratchet.meter.read import labelled
from ratchet.models.build import save_model
from tests.meter.fabricate import recorded
from tests.models import tiny

OWN = Sft(epochs=6, lr=3e-3, batch=8, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    save_model(tiny.model(len(tiny.template().tokenizer)), tiny.tokenizer_folder(), folder / "base", {"stage": "test"})
    return folder


def begun(folder: Path, form: Any = "written") -> tuple[Meter, list[Any], list[Any]]:
    model, template, grammar, alike = make_base(folder / "base", folder / "words", "plain", 1)
    meter = Meter(model, template, grammar, form, "ttg", alike=frozenset([template.tokenizer_id, *alike]), limit=80.0)
    rows, steps = recorded()
    readings = meter.read(rows, steps)
    return meter, readings, [labelled(one, row, "ttg") for one, row in zip(readings, rows, strict=True)]


def test_the_two_trainers_of_the_first_stage_have_one_loss_and_both_learn(folder: Path, tmp_path: Path) -> None:
    meter, readings, labels = begun(folder)
    examples = examples_of(readings, labels, "all", 1)
    flags = [one.value is not None for one in examples]
    assert any(flags) and not all(flags) and len(examples_of(readings, labels, 1, 1)) == len(readings)
    once = chosen(examples, None, False, 1)
    first = [point["loss"] for point in sft_with_trl(meter.model, meter.template, meter.grammar, once, Sft(1, 1e-12, len(once), 1), scratch=tmp_path)]
    ours = ActorLearner(begun(folder)[0].model, [AnswerLikelihood()], optimizer="adamw", batch_tokens=10**6, max_grad_norm=1e6)
    assert ours.update(fit._sequences(meter.grammar, readings, once, balance=False), 0.0).metrics["answer"] == pytest.approx(first[0], abs=1e-4)

    theirs = sft_with_trl(meter.model, meter.template, meter.grammar, once, OWN, scratch=tmp_path)
    other, _, _ = begun(folder)
    _, mine = sft_with_learner(other.model, meter.grammar, readings, examples, OWN, batch_tokens=4096)
    assert theirs[-1]["loss"] < 0.7 * theirs[0]["loss"] and mine[-1]["loss"] < 0.7 * mine[0]["loss"]

    before = tiny.weights(meter.model)
    told: list[int] = []
    curve = rl_with_trl(meter.model, meter.template, meter.grammar, once, Rl(2, 1e-3, 2, 4, 16, 1.0, 1), scratch=tmp_path, progress=lambda done, total, point: told.append(done))
    assert [point["step"] for point in curve] == told == [1, 2] and all(-1 <= point["reward"] <= 1 for point in curve)
    assert meter.model.config._attn_implementation == "ratchet" and before.keys() == tiny.weights(meter.model).keys()


def test_classes_weigh_the_same_where_they_are_balanced(folder: Path) -> None:
    _, readings, labels = begun(folder)
    examples = examples_of(readings, labels, "all", 1)
    able = np.array([one.value is not None for one in examples])
    false, true = fit.class_weights(examples, True)
    assert true * able.sum() == pytest.approx(false * (~able).sum()) == pytest.approx(len(examples) / 2) and fit.class_weights(examples, False) == [1.0, 1.0]


def test_a_head_learns_and_a_folder_keeps_the_whole_meter(folder: Path, tmp_path: Path) -> None:
    meter, readings, labels = begun(folder, "head")
    examples = examples_of(readings, labels, "all", 1)
    meter.head, curve = fit_head(meter.model, meter.grammar, readings, examples, Sft(30, 3e-3, 8, 1), batch_tokens=4096)
    assert curve[-1]["loss"] < 0.5 * curve[0]["loss"]
    rows, steps = recorded()
    found, counts = meter.estimate(rows, readings)
    right = np.concatenate([one.completable == np.array([value is not None for value in label.values]) for one, label in zip(found, labels, strict=True)])
    assert right.mean() > 0.9 and counts.asked == sum(row["n_steps"] for row in rows)

    from ratchet.meter.head import save_head

    out = tmp_path / "meter"
    out.mkdir()
    save_head(meter.head, out)
    save_model(meter.model, folder / "words", out, {"stage": "fit_meter"})
    write_json(out / CARD, {"form": "head", "target": "ttg", "env": "toy", "action_format": "plain", "alike": sorted(meter.alike), "temperature": 2.0,
                            "limit": 80.0, "factors": {"actor": 0.5}})  # fmt: skip
    again = Meter.load(out)
    other, _ = again.estimate(rows, again.read(rows, steps))
    np.testing.assert_allclose(other[0].remaining, found[0].remaining, rtol=1e-3)
    assert np.all(other[0].tokens == found[0].tokens / 2)
    np.testing.assert_allclose(np.log(other[0].p / (1 - other[0].p)), np.log(found[0].p / (1 - found[0].p)) / 2, atol=1e-3)

    # texts of another tokenizer are encoded; a prefix beyond the context is counted, and is C
    strange, _ = recorded(tokenizer="other")
    assert [one.ids.tolist() for one in again.read(strange, steps)] == [one.ids.tolist() for one in again.read(rows, steps)]
    again.model.config._values["max_position_embeddings"] = 20
    short = again.read(rows, steps)
    lost = sum(one.too_long for one in short)
    cut, counts = again.estimate(rows, short)
    assert 0 < lost == counts.too_long and counts.asked + lost == sum(row["n_steps"] for row in rows)
    assert sum(int((~one.parsed).sum()) for one in cut) == lost


def test_a_meter_of_another_environment_is_refused_by_name_unless_it_is_meant() -> None:
    with pytest.raises(RatchetError, match=r"fitted on scienceworld, and env.name is alfworld; set evolve_online.meter.transfer to true"):
        check_environment({"env": "scienceworld"}, "alfworld", False, "here")
    check_environment({"env": "scienceworld"}, "alfworld", True, "here")
    with pytest.raises(RatchetError, match="holds no meter"):
        Meter.load(Path("/nowhere"))
