"""A plain Llama as its weights alone: transformers' module takes some five seconds to import, longer than many a stage plays.

Names of weights and config.json are transformers', so the folder stays what it was. What computes it is ratchet/models/fused.py (updates)
and ratchet/engines/fused.py (rollouts).
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

MOST = 50_000_000  # parameters; above, the import is a small part of what is done
PLAIN = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
}
WEIGHTS = "model.safetensors"


class Config:
    """config.json: its entries as attributes; `save_pretrained` writes the same bytes again."""

    def __init__(self, text: str) -> None:
        self._text, self._values = text, json.loads(text)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def get_text_config(self) -> Config:
        return self

    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "config.json").write_text(self._text, encoding="utf-8")


class PlainLlama(nn.Module):
    """Weights of a plain Llama in float32, under transformers' names."""

    dtype = torch.float32
    _tied_weights_keys: dict[str, str] | None = None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = _Inner(config)
        self.lm_head = _Linear(config.hidden_size, config.vocab_size, bias=False)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def get_decoder(self) -> Any:
        """As transformers' is called by ratchet/models/parts.py, without a cache."""

        def decode(*, input_ids: Tensor, position_ids: Tensor, use_cache: bool, layout: Any) -> SimpleNamespace:
            from ratchet.models.fused import hidden_states

            return SimpleNamespace(last_hidden_state=hidden_states(self, input_ids[0], position_ids[0], layout)[None])

        return decode


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Weights are loaded, never drawn."""


class _Inner(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        weight = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding(*weight.shape, padding_idx=config.pad_token_id, _weight=weight)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = _Norm(config.hidden_size)
        self.rotary_emb = _Rotary(config.head_dim, config.rope_parameters["rope_theta"])


class _Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = _Norm(config.hidden_size)
        self.post_attention_layernorm = _Norm(config.hidden_size)


class _Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = _Linear(config.hidden_size, queries, bias=False)
        self.k_proj = _Linear(config.hidden_size, keys, bias=False)
        self.v_proj = _Linear(config.hidden_size, keys, bias=False)
        self.o_proj = _Linear(queries, config.hidden_size, bias=False)


class _MLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = _Linear(width, inner, bias=False)
        self.up_proj = _Linear(width, inner, bias=False)
        self.down_proj = _Linear(inner, width, bias=False)


class _Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class _Rotary(nn.Module):
    """cos and sin of rotary positions, [1, T, D] each."""

    rope_type = "default"

    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        frequencies = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None].float() * self.inv_freq.to(positions.device)
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def load_plain(folder: Path) -> PlainLlama | None:
    """The model of a Hugging Face folder, None where it is not a plain Llama in float32 of at most MOST parameters in one file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / WEIGHTS
    try:
        config = Config((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    values = config.__dict__["_values"]
    plain = all(values.get(name) == value for name, value in PLAIN.items())
    rope = values.get("rope_parameters") or {}
    if not plain or rope.get("rope_type") != "default" or "head_dim" not in values or not file.is_file() or file.stat().st_size > 4 * MOST:
        return None
    try:
        weights = load_file(str(file))
        if any(tensor.dtype != torch.float32 for tensor in weights.values()):
            return None
        model = PlainLlama(config)
        model.load_state_dict(weights)
    except (SafetensorError, RuntimeError, OSError, TypeError):
        return None  # transformers says better what is wrong
    return model
