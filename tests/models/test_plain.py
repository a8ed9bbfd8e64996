"""A plain Llama without transformers is the model that transformers loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.engines.local import LocalEngine
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import OBSERVATION, PROMPT, REPLY, Sequence
from ratchet.losses.likelihood import Likelihood
from ratchet.models.build import from_scratch, load_model, save_model
from ratchet.models.plain import PlainLlama, load_plain
from tests.models.architectures import make


def tokenizer(folder: Path) -> Path:
    (folder / "source").mkdir(exist_ok=True)
    (folder / "source/tokenizer.json").write_text("{}")
    return folder / "source"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = from_scratch(layers=2, width=32, heads=4, kv_heads=2, mlp=48, vocab=50, context=128, seed=1, begin=0, end=1, pad=2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    save_model(model, tokenizer(tmp_path), tmp_path / "model", {})
    return tmp_path / "model"


def both(folder: Path) -> tuple[Any, Any]:
    light, whole = load_model(folder, light=True), load_model(folder)
    assert type(light) is PlainLlama and type(whole) is not PlainLlama
    return light, whole


def replies(model: Any) -> list[Any]:
    engine = LocalEngine(model, slots=8, length=100, end=1, pad=2)
    rng = np.random.default_rng(3)
    return engine.reply(range(8), [rng.integers(3, 50, 9).tolist() for _ in range(8)], np.arange(8, dtype=np.uint64), [12] * 8, 1.0)


def sequence() -> Sequence:
    role = np.array([PROMPT] * 5 + [REPLY] * 6 + [OBSERVATION] * 4 + [REPLY] * 5, np.int8)
    ids = np.random.default_rng(4).integers(3, 50, 20)
    return Sequence("e", ids, role, np.repeat([0, 1], [11, 9]).astype(np.int32), np.zeros(20, np.float32), np.zeros(2, np.float32))


def test_it_has_the_same_weights_replies_and_updates(folder: Path) -> None:
    light, whole = both(folder)
    assert [name for name, _ in light.named_parameters()] == [name for name, _ in whole.named_parameters()]
    assert replies(light) == replies(whole)
    for kind in ("adamw", "muon"):
        light, whole = both(folder)
        for model in (light, whole):
            learner = ActorLearner(model, [Likelihood()], optimizer=kind, batch_tokens=64, max_grad_norm=1.0)
            assert not learner.update([sequence()], 1e-2).skipped
        assert all(torch.equal(one, other) for one, other in zip(light.parameters(), whole.parameters(), strict=True)), kind


def test_what_it_saves_is_a_folder_that_transformers_loads_with_the_same_configuration(folder: Path, tmp_path: Path) -> None:
    light = load_model(folder, light=True)
    with torch.no_grad():
        light.lm_head.weight.mul_(2)
    save_model(light, folder, tmp_path / "again", {})
    assert (tmp_path / "again/config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert torch.equal(load_model(tmp_path / "again").lm_head.weight, light.lm_head.weight)


def test_anything_else_is_left_to_transformers(tmp_path: Path) -> None:
    for name in ("qwen2", "gpt2"):
        save_model(make(name), tokenizer(tmp_path), tmp_path / name, {})
        assert load_plain(tmp_path / name) is None and type(load_model(tmp_path / name, light=True)) is not PlainLlama


def test_a_process_that_plays_imports_no_model_of_transformers(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import ratchet.engines.local as e; from ratchet.models.build import load_model; "
        f"m = load_model(Path({str(folder)!r}), light=True); e.LocalEngine(m, slots=8, length=9, end=1, pad=2); "
        "print([name for name in sys.modules if name.startswith('transformers.model') or name.startswith('torch.distributed.tensor')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
