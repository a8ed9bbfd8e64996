"""The moving average of weights: what it holds, and that the model that learns is not touched by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ratchet.learners.averaging import WeightAverage
from ratchet.learners.checkpoint import load_checkpoint, save_checkpoint
from tests.models import tiny


@torch.no_grad()
def fill(model: torch.nn.Module, value: float) -> None:
    for one in model.parameters():
        one.fill_(value)


@pytest.mark.parametrize("keep", [0.0, 0.6])
def test_each_update_keeps_its_share_of_the_old_average(keep: float) -> None:
    model = tiny.model()
    fill(model, 1.0)
    average = WeightAverage(model, keep)
    for value in (3.0, -2.0):
        fill(model, value)
        average.update(model)
    expected = keep * (keep * 1.0 + (1 - keep) * 3.0) + (1 - keep) * -2.0
    assert all(torch.allclose(one, torch.full_like(one, expected)) for one in average.weights.values())


def test_the_model_holds_the_average_for_a_time_and_its_own_weights_after_it() -> None:
    model = tiny.model()
    own = tiny.weights(model)
    average = WeightAverage(model, 0.5)
    fill(model, 7.0)
    with pytest.raises(ValueError), average.laid_into(model):
        assert all(torch.equal(value, own[name]) for name, value in tiny.weights(model).items())
        raise ValueError
    assert all((one == 7.0).all() for one in model.parameters())


def test_a_checkpoint_brings_it_back(tmp_path: Path) -> None:
    model = tiny.model()
    average = WeightAverage(model, 0.5)
    fill(model, 7.0)
    average.update(model)
    save_checkpoint(tmp_path / "checkpoint", model, [], {"at": 3}, average.weights)
    other = WeightAverage(tiny.model(), 0.5)
    assert load_checkpoint(tmp_path / "checkpoint", tiny.model(), [], other.weights) == {"at": 3}
    assert all(torch.equal(one, average.weights[name]) for name, one in other.weights.items())
