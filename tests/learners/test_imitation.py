"""A warm start that is killed and begun again ends with the same bytes; its checkpoints hold no pickle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from ratchet.errors import RatchetError
from ratchet.learners.actor import ActorLearner
from ratchet.learners.checkpoint import load_checkpoint, save_checkpoint
from ratchet.learners.imitation import ImitationSettings, batches, imitate
from ratchet.losses.likelihood import Likelihood
from tests.models import tiny

SETTINGS = ImitationSettings(tokens=1500, batch_tokens=120, lr=3e-3, optimizer="muon", observation_weight=0.3, warmup_share=0.1, floor=0.0,
                             max_grad_norm=1.0, seed=3, checkpoint_every=4, log_every=1)
TRAIN, HELD_OUT = tiny.sequences(12), tiny.sequences(3, seed=9)


class Killed(Exception):
    pass


def train(folder: Path, settings: ImitationSettings = SETTINGS, until: int | None = None) -> tuple[Any, Any]:
    count = [0]

    def progress(done: int, total: int, point: dict[str, Any]) -> None:
        count[0] += 1
        if count[0] == until:
            raise Killed

    return imitate(tiny.model(), TRAIN, HELD_OUT, settings, scratch=folder, progress=progress)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_killed_and_resumed_is_the_same_bytes_as_in_one_go(tmp_path: Path, optimizer: str) -> None:
    settings = replace(SETTINGS, optimizer=optimizer)
    model, whole = train(tmp_path / "whole", settings)
    for until in (6, 5):  # killed twice, between two checkpoints
        with pytest.raises(Killed):
            train(tmp_path / "parts", settings, until)
    resumed, result = train(tmp_path / "parts", settings)
    assert whole.steps > 9 and result == whole
    assert all(torch.equal(value, tiny.weights(model)[name]) for name, value in tiny.weights(resumed).items())


def test_it_learns_what_was_shown_and_stops_at_its_budget(tmp_path: Path) -> None:
    _, result = train(tmp_path, replace(SETTINGS, tokens=6000))
    assert result.curve[-1]["loss"] < 0.7 * result.curve[0]["loss"] and result.skipped_steps == 0
    assert 6000 <= result.tokens < 6000 + 120
    assert result.held_out_loss == result.curve[-1]["held_out_loss"] and np.isfinite(result.held_out_loss)


@pytest.mark.parametrize("changes", [{"observation_weight": 0.0}, {"warmup_share": 0.5}, {"floor": 0.5}, {"seed": 4}, {"lr": 1e-3}, {"max_grad_norm": 0.01},
                                     {"batch_tokens": 60}, {"optimizer": "adamw"}, {"autocast": "bf16"}])
def test_every_setting_has_an_effect(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = replace(SETTINGS, tokens=500)
    plain, other = (tiny.weights(train(tmp_path / str(n), one)[0]) for n, one in enumerate((settings, replace(settings, **changes))))
    assert any(not torch.equal(plain[name], other[name]) for name in plain)


def test_checkpoints_may_come_before_the_first_point_of_the_curve(tmp_path: Path) -> None:
    _, result = train(tmp_path, replace(SETTINGS, log_every=1000, checkpoint_every=2))
    assert len(result.curve) == 1


def test_a_model_that_breaks_is_reported_not_hidden(tmp_path: Path) -> None:
    model = tiny.model()
    with torch.no_grad():
        model.lm_head.weight[3, 3] = float("nan")
    _, result = imitate(model, TRAIN, [], replace(SETTINGS, tokens=500), scratch=tmp_path)
    assert result.skipped_steps == result.steps > 0 and result.curve == []
    json.dumps(vars(result), allow_nan=False)


def test_too_many_skipped_steps_end_the_warm_start_as_soon_as_that_is_certain(tmp_path: Path) -> None:
    model = tiny.model()
    with torch.no_grad():
        model.lm_head.weight[3, 3] = float("nan")
    settings = replace(SETTINGS, tokens=100 * SETTINGS.batch_tokens, max_skipped_share=0.03)
    with pytest.raises(RatchetError, match=r"^4 of 100 optimiser steps were skipped .* learner\.max_skipped_share=0\.03; lower warm_start\.lr"):
        imitate(model, TRAIN, [], settings, scratch=tmp_path)
    calm = replace(SETTINGS, tokens=500, max_grad_norm=1e-9, max_grad_norm_ratio=1.0, max_skipped_share=0.0)
    with pytest.raises(RatchetError, match="^1 of"):  # every gradient is longer than that
        train(tmp_path / "calm", calm)


def test_an_epoch_shows_every_sequence_once_in_an_order_of_its_own() -> None:
    seen: list[str] = []
    for batch in batches(TRAIN, 60, seed=1):
        seen += [one.episode_id for one in batch]
        assert len(batch) == 1 or sum(len(one.ids) for one in batch) <= 60
        if len(seen) >= 2 * len(TRAIN):
            break
    first, second = seen[: len(TRAIN)], seen[len(TRAIN) : 2 * len(TRAIN)]
    assert sorted(first) == sorted(second) == sorted(one.episode_id for one in TRAIN) and first != second


def learner(layers: int = 2) -> ActorLearner:
    return ActorLearner(tiny.model(layers=layers), [Likelihood()], optimizer="muon", batch_tokens=500, max_grad_norm=1.0)


def test_a_checkpoint_is_safetensors_and_json_and_comes_back_whole(tmp_path: Path) -> None:
    one, folder = learner(), tmp_path / "checkpoint"
    one.update(TRAIN, 1e-3)
    save_checkpoint(folder, one.model, one.optimizers, {"step": 1})
    save_checkpoint(folder, one.model, one.optimizers, {"step": 2})
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as tensors:
                assert tensors.keys() is not None
        else:
            assert file.suffix == ".json" and json.loads(file.read_text()) is not None
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]
    other = learner()
    assert load_checkpoint(folder, other.model, other.optimizers) == {"step": 2}
    for both in (one, other):
        both.update(TRAIN, 1e-3)
    assert all(torch.equal(value, tiny.weights(other.model)[name]) for name, value in tiny.weights(one.model).items())


def test_a_kill_in_the_middle_of_the_swap_loses_nothing(tmp_path: Path) -> None:
    one, folder = learner(), tmp_path / "checkpoint"
    assert load_checkpoint(folder, one.model, one.optimizers) is None
    save_checkpoint(folder, one.model, one.optimizers, {"step": 1})
    folder.rename(tmp_path / ".checkpoint.old")
    assert load_checkpoint(folder, one.model, one.optimizers) == {"step": 1}


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    one, other = learner(1), learner(2)
    save_checkpoint(tmp_path / "checkpoint", one.model, one.optimizers, {})
    with pytest.raises(RatchetError, match="checkpoint of another model") as caught:
        load_checkpoint(tmp_path / "checkpoint", other.model, other.optimizers)
    assert str(tmp_path / "checkpoint") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer-0.safetensors", "progress.json", "manifest.json"])
def test_a_damaged_checkpoint_is_put_aside_by_name_and_nothing_of_it_is_taken(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    one, folder = learner(), tmp_path / "checkpoint"
    one.update(TRAIN, 1e-3)
    save_checkpoint(folder, one.model, one.optimizers, {"step": 1})
    (folder / name).write_bytes((folder / name).read_bytes()[:5])
    fresh, other = tiny.weights(learner().model), learner()
    assert load_checkpoint(folder, other.model, other.optimizers) is None
    assert all(torch.equal(value, fresh[key]) for key, value in tiny.weights(other.model).items())
    assert not folder.exists() and (tmp_path / "damaged" / "checkpoint" / name).is_file()
    assert name in caplog.text and "learned again" in caplog.text


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, folder = learner(), tmp_path / "checkpoint"
    save_checkpoint(folder, one.model, one.optimizers, {"step": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            save_checkpoint(folder, one.model, one.optimizers, {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert load_checkpoint(folder, one.model, one.optimizers) == {"step": 1}


def test_a_checkpoint_of_another_configuration_is_refused_by_name(tmp_path: Path) -> None:
    one, folder = learner(), tmp_path / "checkpoint"
    save_checkpoint(folder, one.model, one.optimizers, {}, configuration="aaaa")
    with pytest.raises(RatchetError, match=r"checkpoint: a checkpoint of another configuration \(aaaa, this one is bbbb\); move it away"):
        load_checkpoint(folder, one.model, one.optimizers, configuration="bbbb")


def test_nothing_to_imitate_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(RatchetError, match="no demonstration is left to train on; raise demonstrate.episodes"):
        imitate(tiny.model(), [], HELD_OUT, SETTINGS, scratch=tmp_path)
