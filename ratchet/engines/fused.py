"""A Llama's decoder in few operations, for small models: what a token costs there is mostly the number of operations.

Projections of queries, keys and values are one product, so are gate and up; a residual is added inside the product before it, and the
weights of a norm are part of the product behind it. Weights lie as [in, out]: with 32 rows such a product takes three quarters of the
time of one with [out, in]. The result is the transformers model's, up to the order of sums (1e-6).

Legend: T packed tokens · W width · H query heads · K key heads · D head size · M width of the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.models.attention import SlotCache


@dataclass(frozen=True)
class _Layer:
    qkv: Tensor  # [W, (H + 2K)·D], the norm before it included
    out: Tensor  # [H·D, W]
    gate_up: Tensor  # [W, 2M], the norm before it included
    down: Tensor  # [M, W]


class FusedDecoder:
    """Hidden states of packed tokens on a SlotCache, from the weights that the model had at the last `follow`."""

    def __init__(self, model: Any, length: int) -> None:
        """`length` bounds positions."""
        self.model = model
        config = model.config
        self.heads, self.kv_heads, self.eps = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
        self.size = model.model.layers[0].self_attn.head_dim
        device = next(model.parameters()).device
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
        self.layers = [_laid_together(layer) for layer in self.model.model.layers]
        self.head = self.model.lm_head.weight.detach().t().contiguous()  # [W, V]

    def __call__(self, ids: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        """ids and positions [T] → [T, W], behind the last norm."""
        x = F.embedding(ids, self.model.model.embed_tokens.weight.detach())
        cos, sin = self.cos[positions], self.sin[positions]
        rotary = (self.heads + self.kv_heads) * self.size
        scale = self.size**-0.5
        for index, layer in enumerate(self.layers):
            qkv = torch.mm(self._normed(x), layer.qkv)
            qk = qkv[:, :rotary].view(len(x), -1, self.size)
            qk = torch.addcmul(qk * cos, torch.roll(qk, self.size // 2, -1), sin)
            query, key = qk.transpose(0, 1)[None].split([self.heads, self.kv_heads], 1)
            value = qkv[:, rotary:].view(len(x), -1, self.size).transpose(0, 1)[None]
            mixed = cache.attend(index, query, key, value, scale).reshape(len(x), -1)
            x = torch.addmm(x, mixed, layer.out)
            gate, up = torch.mm(self._normed(x), layer.gate_up).chunk(2, -1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        return F.rms_norm(x, (x.shape[1],), self.model.model.norm.weight.detach(), self.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, W] → [T, V]."""
        return torch.mm(hidden, self.head)

    def _normed(self, x: Tensor) -> Tensor:
        """A root mean square of 1 a row; torch's rms_norm takes twice as long for few rows."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def _laid_together(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]).detach()
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach()
    return _Layer(
        (qkv * layer.input_layernorm.weight.detach()).t().contiguous(),
        attention.o_proj.weight.detach().t().contiguous(),
        (gate_up * layer.post_attention_layernorm.weight.detach()).t().contiguous(),
        mlp.down_proj.weight.detach().t().contiguous(),
    )
