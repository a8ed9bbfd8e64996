"""Models from scratch, from a local Hugging Face folder, and back to one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ratchet.errors import RatchetError
from ratchet.files import read_json, sha256_files, write_json
from ratchet.models import attention, parts
from ratchet.models.plain import WEIGHTS, load_plain

RERANK = "rerank.json"  # beside weights: a critic chooses among replies when this version plays (ratchet/critic/rerank.py)
COMPANIONS = (  # what belongs to a version and is no weight: tokenizer, chat template, stop tokens, where a base model comes from
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "base.json",
)


def from_scratch(
    *, layers: int, width: int, heads: int, kv_heads: int, mlp: int, vocab: int, context: int, seed: int, begin: int, end: int, pad: int
) -> Any:
    """A Llama with untied embeddings, fp32, initialised from `seed` alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    attention.register()
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=width // heads,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=begin,
        eos_token_id=end,
        pad_token_id=pad,
        attn_implementation=attention.NAME,
    )
    generator = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    torch.random.set_rng_state(generator)
    return model.float()


def load_model(folder: Path, dtype: torch.dtype = torch.float32, *, light: bool = False) -> Any:
    """A causal LM of a Hugging Face folder with our attention, its dropout off. `light`: where it is a small plain Llama, its weights
    alone (ratchet/models/plain.py), for engine and learner; it has no `generate` and takes no padding.

    Raises RatchetError where weights or config are missing, and for an architecture that our attention does not compute.
    """
    if not (folder / "config.json").is_file():
        raise RatchetError(f"{folder}: no config.json; give a Hugging Face model folder")
    if not any(folder.glob("*.safetensors")):
        raise RatchetError(f"{folder}: no weights (*.safetensors); export the model with save_pretrained, or give another folder")
    if light and dtype == torch.float32 and (plain := load_plain(folder)) is not None:
        return plain
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    attention.register()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            str(folder), local_files_only=True, dtype=dtype, attn_implementation=attention.NAME, output_loading_info=True
        )
    except (ValueError, OSError, RuntimeError, KeyError, SafetensorError) as error:
        raise RatchetError(f"{folder}: cannot be loaded as a causal language model ({str(error).splitlines()[0]})") from error
    if missing := sorted(info["missing_keys"]):  # transformers fills these up with random numbers
        raise RatchetError(f"{folder}: {len(missing)} weights are missing, {missing[0]} the first; export the model anew with save_pretrained")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # sampler and learner must compute one distribution
    parts.check_computes(model, str(folder))
    return model


def save_model(model: Any, template_folder: Path, folder: Path, card: dict[str, Any]) -> str:
    """Writes weights, config, the template folder's companions and `ratchet.json`; returns the version id, a hash of weights, config and tokenizer."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored_tensors(model), str(folder / WEIGHTS), metadata={"format": "pt"})
    model.config.save_pretrained(str(folder))
    for name in COMPANIONS:
        source = template_folder / name
        if source.is_file():
            (folder / name).write_bytes(source.read_bytes())
    version = version_of(folder)
    write_json(folder / "ratchet.json", {**card, "version": version})
    return version


def stored_tensors(model: Any) -> dict[str, torch.Tensor]:
    """The tensors that are stored: on the CPU, those that are tied to another one left out."""
    tied = (model._tied_weights_keys or {}) if getattr(model.config, "tie_word_embeddings", False) else {}
    return {name: tensor.detach().to("cpu").contiguous() for name, tensor in model.state_dict().items() if name not in tied}


def write_weights(model: Any, file: Path) -> None:
    """The weights alone, for another process that holds the same model (`lay_weights`)."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(stored_tensors(model), str(file))


def lay_weights(file: Path, model: Any) -> None:
    """Lays what `write_weights` wrote into the tensors of `model`."""
    from safetensors.torch import load_file

    model.load_state_dict(load_file(str(file)), strict=False)  # tied tensors are stored once


def version_of(folder: Path) -> str:
    """First 12 hex digits of sha256 over the bytes of weights, config and tokenizer, and of what chooses among its replies where
    something does: the same content is the same version."""
    weights = sorted(folder.glob("*.safetensors"))
    chooser = [folder / RERANK] if (folder / RERANK).is_file() else []
    return sha256_files([*weights, folder / "config.json", folder / "tokenizer.json", *chooser])[:12]


def card_of(folder: Path) -> dict[str, Any]:
    """`ratchet.json` of a model folder; a plain Hugging Face folder has only its version."""
    if (folder / "ratchet.json").is_file():
        return read_json(folder / "ratchet.json")
    return {"version": version_of(folder), "parents": [], "stage": "given"}
