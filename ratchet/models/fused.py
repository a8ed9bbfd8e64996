"""A plain Llama's forward pass in few operations, with gradients: what a small model's update costs is mostly their number.

Projections of queries, keys and values are one product, so are gate and up; the weight of a norm goes into the product behind it;
norm, rotary positions and SwiGLU have backward passes of their own. The result is the transformers model's, up to the order of sums.

Legend: T packed tokens · W width · H query heads · K key heads · D head size · M width of the MLP.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.models.parts import decoder
from ratchet.models.plain import MOST, PlainLlama

ROPES = ("default", "linear", "llama3")  # kinds of rotary positions whose angles depend on the position alone


class Layout(Protocol):
    """What may see what: `Packed` of ratchet/models/attention.py, or the branches of ratchet/models/branches.py."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor: ...


def fusable(model: Any) -> bool:
    """Whether this is a plain Llama in float32, small enough for fewer operations to pay."""
    if isinstance(model, PlainLlama):
        return True
    from transformers import LlamaForCausalLM

    if type(model) is not LlamaForCausalLM or model.dtype != torch.float32 or sum(p.numel() for p in model.parameters()) > MOST:
        return False
    config = model.config
    plain = not config.attention_bias and not config.mlp_bias and config.hidden_act == "silu" and not config.attention_dropout
    return plain and model.model.rotary_emb.rope_type in ROPES


def hidden_states(model: Any, ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    """ids and positions [T] → [T, W] behind the last norm, under autocast too. `fusable(model)` has to hold."""
    inner, config = model.model, model.config
    heads, kv_heads, eps = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
    x = F.embedding(ids, inner.embed_tokens.weight, inner.embed_tokens.padding_idx)  # a pad has a value and no gradient
    cos, sin = (angles[0][:, None] for angles in inner.rotary_emb(x, positions[None]))
    size = cos.shape[-1]
    sin = torch.cat([-sin[..., : size // 2], sin[..., size // 2 :]], -1)
    rotary = (heads + kv_heads) * size
    for layer in inner.layers:
        attention, mlp = layer.self_attn, layer.mlp
        weight = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]) * layer.input_layernorm.weight
        qkv = F.linear(_Normalise.apply(x, eps), weight)
        turned = _Rotate.apply(qkv[:, :rotary].view(len(x), -1, size), cos.to(qkv.dtype), sin.to(qkv.dtype))
        query, key = turned.transpose(0, 1)[None].split([heads, kv_heads], 1)
        value = qkv[:, rotary:].view(len(x), -1, size).transpose(0, 1)[None]
        mixed = layout.attend(query, key, value, size**-0.5).reshape(len(x), -1)
        x = x + F.linear(mixed, attention.o_proj.weight)
        weight = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * layer.post_attention_layernorm.weight
        x = x + F.linear(_SwiGLU.apply(F.linear(_Normalise.apply(x, eps), weight)), mlp.down_proj.weight)
    return _Normalise.apply(x, eps) * inner.norm.weight


def hidden_of(model: Any, ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    """[T, W] behind the last norm of any model; ids and positions [T]. Fused where the model is plain enough, else its own decoder."""
    if fusable(model):
        return hidden_states(model, ids, positions, layout)
    return decoder(model)(input_ids=ids[None], position_ids=positions[None], use_cache=False, layout=layout).last_hidden_state[0]


class _Normalise(torch.autograd.Function):
    """x / rms(x) over the last dimension, [T, W]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        normal = x * inverse
        ctx.save_for_backward(normal, inverse)
        return normal

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        normal, inverse = ctx.saved_tensors
        along = (grad * normal).mean(-1, keepdim=True)
        return torch.addcmul(grad, normal, along, value=-1).mul_(inverse), None


class _Rotate(torch.autograd.Function):
    """Rotary positions of heads [T, h, D]; in `sin` [T, 1, D] the first half has the other sign."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return (heads * cos).addcmul_(torch.roll(heads, heads.shape[-1] // 2, -1), sin)  # in place: autocast would widen it

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        half = grad.shape[-1] // 2
        return torch.addcmul(grad * cos, torch.roll(grad, half, -1), torch.roll(sin, half, -1)), None, None


class _SwiGLU(torch.autograd.Function):
    """silu(gate) · up of [T, 2M] → [T, M]."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        opened = F.silu(gate)
        ctx.save_for_backward(both, opened)
        return opened * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        both, opened = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        found = torch.empty_like(both)
        of_gate, of_up = found.chunk(2, -1)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=of_gate)
        torch.mul(grad, opened, out=of_up)
        return found
