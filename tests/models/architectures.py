"""Tiny random models of several architectures, with weights large enough for attention and positions to matter."""

from __future__ import annotations

from typing import Any

import torch

SHAPE = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def _configs() -> dict[str, Any]:
    from transformers import GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

    return {
        "llama-tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
        "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True, use_sliding_window=False),
        "qwen3": Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False),
        "gpt2": GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=300),
    }


NAMES = ("llama-tied", "qwen2", "qwen3", "gpt2")


def plain(config: Any, seed: int = 1, scale: float = 8.0) -> Any:
    """A model as transformers makes it, with attention of its own."""
    from transformers import AutoModelForCausalLM

    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    torch.random.set_rng_state(state)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2:
                p.mul_(scale)
            elif name.endswith("bias"):
                p.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def make(name: str) -> Any:
    return plain(_configs()[name], scale=4.0 if name in ("llama-tied", "qwen2", "gpt2") else 8.0)
