"""Model folders: what is written is read back, the same content is the same version, and what is not whole is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ratchet.errors import RatchetError
from ratchet.models.attention import NAME, Packed
from ratchet.models.build import card_of, from_scratch, load_model, save_model, version_of
from tests.models import tiny

SHAPE = {"layers": 1, "width": 32, "heads": 4, "kv_heads": 2, "mlp": 48, "vocab": 60, "context": 64, "begin": 1, "end": 4, "pad": 0}


def saved(folder: Path) -> Path:
    save_model(tiny.model(), tiny.tokenizer_folder(), folder, {"stage": "test"})
    return folder


def test_initial_weights_depend_on_the_seed_alone_and_leave_the_global_state() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = tiny.weights(from_scratch(**SHAPE, seed=1))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(6)
    again, other = tiny.weights(from_scratch(**SHAPE, seed=1)), tiny.weights(from_scratch(**SHAPE, seed=2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_a_saved_model_comes_back_bit_for_bit_and_its_version_is_its_content(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a")
    own, found = tiny.weights(tiny.model()), tiny.weights(load_model(folder))
    assert own.keys() == found.keys() and all(torch.equal(own[name], found[name]) for name in own)
    assert card_of(folder) == {"stage": "test", "version": version_of(folder)}
    assert version_of(saved(tmp_path / "b")) == version_of(folder)
    save_model(tiny.model(seed=2), tiny.tokenizer_folder(), tmp_path / "c", {})
    assert version_of(tmp_path / "c") != version_of(folder)
    (folder / "ratchet.json").unlink()
    assert card_of(folder)["version"] == version_of(folder)


@pytest.mark.parametrize(("break_it", "said"), [
    (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"\x00" * 20), "cannot be loaded"),
    (lambda folder: (folder / "config.json").write_text("{}"), "cannot be loaded"),
    (lambda folder: (folder / "config.json").write_text("{"), "cannot be loaded"),
], ids=["no config", "no weights", "damaged weights", "empty config", "damaged config"])
def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path: Path, break_it, said: str) -> None:
    break_it(saved(tmp_path))
    with pytest.raises(RatchetError, match=said) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_missing_tensor_is_refused_and_never_drawn_at_random(tmp_path: Path) -> None:
    file = saved(tmp_path) / "model.safetensors"
    state = load_file(file)
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(RatchetError, match=r"layers\.1\.mlp\.up_proj"):
        load_model(tmp_path)


def test_tied_embeddings_are_stored_once_and_are_not_missing(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, tie_word_embeddings=True)
    model = LlamaForCausalLM(config)
    save_model(model, tiny.tokenizer_folder(), tmp_path, {})
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    found = load_model(tmp_path)
    assert found.lm_head.weight.data_ptr() == found.model.embed_tokens.weight.data_ptr()
    assert torch.equal(found.lm_head.weight, model.lm_head.weight)


def test_our_attention_refuses_what_it_would_compute_otherwise() -> None:
    model = tiny.model()
    with pytest.raises(ValueError, match="layout"):
        model(input_ids=torch.tensor([[5, 6]]), use_cache=False)
    from transformers import MistralConfig, MistralForCausalLM

    shape = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    for window in (4, None):
        model = MistralForCausalLM(MistralConfig(**shape, sliding_window=window, attn_implementation=NAME))
        if window is None:
            model(input_ids=torch.tensor([[5, 6]]), use_cache=False, layout=Packed.of([2]))
        else:
            with pytest.raises(NotImplementedError, match="sliding_window"):
                model(input_ids=torch.tensor([[5, 6]]), use_cache=False, layout=Packed.of([2]))
