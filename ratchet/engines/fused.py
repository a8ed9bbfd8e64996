"""A Llama's decoder in few operations, for small models: what a token costs there is mostly the number of operations.

Projections of queries, keys and values are one product, so are gate and up; a residual is added inside the product before it, and the
weights of a norm are part of the product behind it. On a CPU with oneDNN the weights lie packed as its kernels read them:
with 32 rows and 5M parameters that takes half the time of torch's product, which packs them at every call. The result is the transformers
model's, up to the order of sums (1e-6).

Legend: T packed tokens · W width · H query heads · K key heads · D head size · M width of the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.models.attention import SlotCache

ROWS = 32  # that weights are packed for; what is packed for so few is as quick with thousands


class _Product:
    """x [T, in] times a weight. A row's result has the same bits whatever the other rows are and how many (torch's: from 8 rows on)."""

    def __init__(self, weight: Tensor) -> None:
        """`weight` [out, in]."""
        self.packs = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if self.packs else weight.t().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "") if self.packs else torch.mm(x, self.weight)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if self.packs:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, None, "add")
        return torch.addmm(residual, x, self.weight)


@dataclass(frozen=True)
class _Layer:
    qkv: _Product  # W → (H + 2K)·D, the norm before it and the scale of scores included
    out: _Product  # H·D → W
    gate_up: _Product  # W → 2M, the norm before it included
    down: _Product  # M → W


class FusedDecoder:
    """Hidden states of packed tokens on a SlotCache, from the weights that the model had at the last `follow`."""

    def __init__(self, model: Any, length: int) -> None:
        """`length` bounds positions."""
        self.model = model
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = model.model.layers[0].self_attn.head_dim
        device = next(model.parameters()).device
        self.eps = torch.tensor(config.rms_norm_eps, device=device)
        cos, sin = model.model.rotary_emb(torch.zeros(1, device=device), torch.arange(length, device=device)[None])
        half = self.size // 2
        self.cos = cos[0][:, None]  # [length, 1, D]
        self.sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)[:, None]
        self._of: int | None = None
        self.follow()

    def follow(self) -> None:
        """Lays the weights together again where a step has changed them since the last time; to be called before each reply."""
        now = sum(p._version for p in self.model.parameters())
        if now == self._of:
            return
        self._of = now
        self.layers = [_laid_together(layer, self.size**-0.5) for layer in self.model.model.layers]
        self.head = _Product(self.model.lm_head.weight.detach())

    def __call__(self, ids: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        """ids and positions [T] → [T, W], behind the last norm."""
        x = F.embedding(ids, self.model.model.embed_tokens.weight.detach())
        cos, sin = self.cos[positions], self.sin[positions]
        rotary = (self.heads + self.kv_heads) * self.size
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(self._normed(x))
            qk = qkv[:, :rotary].view(len(x), -1, self.size)
            qk = torch.addcmul(qk * cos, torch.roll(qk, self.size // 2, -1), sin)
            query, key = qk.transpose(0, 1)[None].split([self.heads, self.kv_heads], 1)
            value = qkv[:, rotary:].view(len(x), -1, self.size).transpose(0, 1)[None]
            mixed = cache.attend(index, query, key, value, 1.0).reshape(len(x), -1)
            x = layer.out.added_to(x, mixed)
            gate, up = layer.gate_up(self._normed(x)).chunk(2, -1)
            x = layer.down.added_to(x, F.silu(gate).mul_(up))
        return F.rms_norm(x, (x.shape[1],), self.model.model.norm.weight.detach(), self.model.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, W] → [T, V]."""
        return self.head(hidden)

    def _normed(self, x: Tensor) -> Tensor:
        """A root mean square of 1 a row; torch's rms_norm takes twice as long for few rows."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self.eps, norm, norm, value=1 / x.shape[1]).rsqrt_()


def _laid_together(layer: Any, scale: float) -> _Layer:
    """`scale` is that of scores; queries come out scaled."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = torch.cat([attention.q_proj.weight * scale, attention.k_proj.weight, attention.v_proj.weight]).detach()
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach()
    return _Layer(
        _Product(qkv * layer.input_layernorm.weight.detach()),
        _Product(attention.o_proj.weight.detach()),
        _Product(gate_up * layer.post_attention_layernorm.weight.detach()),
        _Product(mlp.down_proj.weight.detach()),
    )
