"""TRL's trainer and our learner compute one loss (slow: it imports TRL)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.errors import RatchetError
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import REPLY
from ratchet.learners.imitation import ImitationSettings
from ratchet.learners.trl_imitation import imitate_with_trl, make_trainer, rows
from ratchet.learners.trl_training import train
from ratchet.losses.likelihood import Likelihood
from tests.models import tiny

SETTINGS = ImitationSettings(tokens=600, batch_tokens=100, lr=3e-3, optimizer="adamw", observation_weight=0.0, warmup_share=0.0, floor=0.0,
                             max_grad_norm=1.0, seed=1, log_every=1)


def test_rows_mask_all_but_the_replies() -> None:
    for one, row in zip(tiny.sequences(5), rows(tiny.sequences(5)), strict=True):
        assert row["input_ids"] == one.ids.tolist() and row["labels"] == np.where(one.role == REPLY, one.ids, -100).tolist()


@pytest.mark.timeout(120)
def test_its_loss_is_ours_and_a_run_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, template = tiny.sequences(8), tiny.template()
    vocab = len(template.tokenizer)
    learner = ActorLearner(tiny.model(vocab), [Likelihood()], optimizer="adamw", batch_tokens=10**6, max_grad_norm=1e6)
    ours = learner.update(train, 0.0).metrics["likelihood"]
    trainer = make_trainer(tiny.model(vocab), template, train, SETTINGS, tmp_path / "trl")
    batch = trainer.data_collator([trainer.train_dataset[n] for n in range(len(train))])
    tokens = (batch["labels"] != -100).sum()
    assert int(tokens) == sum(one.n_reply for one in train)
    with torch.no_grad():
        theirs = float(trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=tokens))
    np.testing.assert_allclose(theirs, ours, atol=1e-5)

    model = tiny.model(vocab)
    before = tiny.weights(model)
    points: list[float] = []
    states: set[float] = set()

    def progress(done: int, total: int, point: dict[str, float]) -> None:
        points.append(point["loss"])
        states.add(float(sum(value.detach().double().sum() for value in model.parameters())))

    capsys.readouterr()
    model, result = imitate_with_trl(model, template, train, tiny.sequences(2, seed=5), SETTINGS, scratch=tmp_path, progress=progress)
    assert len(states) == len(points) and "loss" not in capsys.readouterr().out  # told while it trains, and by us alone
    assert all(not torch.equal(value, before[name]) for name, value in tiny.weights(model).items())
    assert len(points) == len(result.curve) == result.steps >= 4 and points[-1] < points[0]
    assert np.isfinite(result.held_out_loss)
    # what comes back has our attention again, and the weights that were trained
    again = ActorLearner(model, [Likelihood()], optimizer="adamw", batch_tokens=10**6, max_grad_norm=1e6)
    assert again.update(train, 0.0).metrics["likelihood"] < ours


def test_weights_that_a_trainer_spoiled_are_refused() -> None:
    class Spoiling:
        model = torch.nn.Linear(2, 2)

        def train(self) -> None:
            self.model.weight.data[0, 0] = torch.nan

        def add_callback(self, one: object) -> None:
            pass

        remove_callback = add_callback

    with pytest.raises(RatchetError, match=r"^lower it$"):
        train(Spoiling(), "loss", lambda step, steps, log: {}, lambda step, steps, point: None, "lower it")
