"""Engine and learner on models that are not ours: the log-probs are those of transformers' own attention, or the model is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.engines.local import LocalEngine
from ratchet.errors import RatchetError
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import REPLY, Sequence
from ratchet.losses.likelihood import Likelihood
from ratchet.models import parts
from ratchet.models.build import load_model, save_model
from ratchet.rollout.noise import episode_key
from tests.models import architectures, tiny


def loaded(model: Any, folder: Path) -> Any:
    model.save_pretrained(str(folder))
    return load_model(folder)


def played(model: Any, temperature: float = 1.0) -> list[Sequence]:
    """Nine episodes of three turns, as the engine sampled them."""
    engine, rng = LocalEngine(model, slots=9, length=200, end=4, pad=0), np.random.default_rng(8)
    keys = np.array([episode_key(1, f"e{slot}") for slot in range(9)])
    ids: list[list[int]] = [[] for _ in range(9)]
    role: list[list[int]] = [[] for _ in range(9)]
    old: list[list[float]] = [[] for _ in range(9)]
    for _ in range(3):
        new = [rng.integers(5, 60, rng.integers(1, 30)).tolist() for _ in range(9)]
        for slot, one in enumerate(engine.reply(range(9), new, keys, [12] * 9, temperature)):
            ids[slot] += new[slot] + one.ids
            role[slot] += [0] * len(new[slot]) + [REPLY] * len(one.ids)
            old[slot] += [0.0] * len(new[slot]) + one.logprobs
    return [Sequence(f"e{n}", np.array(ids[n]), np.array(role[n], np.int8), np.zeros(len(ids[n]), np.int32), np.array(old[n], np.float32),
                     np.ones(1, np.float32)) for n in range(9)]


@pytest.mark.parametrize("name", architectures.NAMES)
def test_sampler_learner_and_transformers_compute_the_same_log_probs(tmp_path: Path, name: str) -> None:
    model = loaded(architectures.make(name), tmp_path)
    batch = played(model, 0.8)
    learner = ActorLearner(model, [Likelihood()], optimizer="adamw", batch_tokens=200, max_grad_norm=1.0, temperature=0.8)
    found = learner.logprobs(batch)
    for one in batch:
        mine = one.role == REPLY
        reference = np.concatenate([[0.0], tiny.reference_logprobs(model, one.ids, 0.8).numpy()])
        np.testing.assert_allclose(found[one.episode_id][mine], one.old_logprobs[mine], atol=1e-4)
        np.testing.assert_allclose(one.old_logprobs[mine], reference[mine], atol=1e-4)


@pytest.mark.parametrize("name", architectures.NAMES)
def test_an_update_moves_every_weight_and_a_saved_version_comes_back(tmp_path: Path, name: str) -> None:
    model = loaded(architectures.make(name), tmp_path / "base")
    learner = ActorLearner(model, [Likelihood()], optimizer="adamw", batch_tokens=500, max_grad_norm=1.0)
    before = tiny.weights(model)
    learner.update(played(model), 1e-3)
    after = tiny.weights(model)
    assert all(not torch.equal(after[key], before[key]) for key in after if not key.endswith("k_proj.bias"))  # softmax does not see it
    save_model(model, tiny.tokenizer_folder(), tmp_path / "saved", {})
    again = tiny.weights(load_model(tmp_path / "saved"))
    assert all(torch.equal(again[key], after[key]) for key in after)


def test_dropout_is_off_or_sampler_and_learner_would_not_compute_one_distribution(tmp_path: Path) -> None:
    model = loaded(architectures.make("gpt2"), tmp_path)  # its configuration says 0.1
    batch = played(model)
    learner = ActorLearner(model, [Likelihood()], optimizer="adamw", batch_tokens=10**4, max_grad_norm=1.0)
    expected = -sum(one.old_logprobs.sum() for one in batch) / sum(one.n_reply for one in batch)
    np.testing.assert_allclose(learner.update(batch, 0.0).metrics["likelihood"], expected, rtol=1e-4)


def config_of(kind: str) -> Any:
    from transformers import Gemma2Config, GraniteConfig, MambaConfig, MistralConfig

    return {
        "sliding window": lambda: MistralConfig(**architectures.SHAPE, sliding_window=4),
        "soft cap": lambda: Gemma2Config(**architectures.SHAPE, head_dim=8),
        "scaled logits": lambda: GraniteConfig(**architectures.SHAPE, logits_scaling=3.0),
        "recurrent": lambda: MambaConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, state_size=4),
    }[kind]()


@pytest.mark.parametrize("kind", ["sliding window", "soft cap", "scaled logits", "recurrent"])
def test_a_model_that_our_attention_would_compute_otherwise_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    with pytest.raises(RatchetError, match="Ratchet's attention") as caught:
        loaded(architectures.plain(config_of(kind)), tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_head_of_another_name_is_found() -> None:
    model = architectures.make("gpt2")
    assert parts.decoder(model) is model.transformer and parts.head(model) is model.lm_head
    model = tiny.model()
    assert parts.decoder(model) is model.model and parts.head(model) is model.lm_head
