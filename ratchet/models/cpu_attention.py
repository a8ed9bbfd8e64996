"""Attention of a packed pass on a CPU, written out: its trunks, and the branches that continue them, in one operation.

Trunks go through torch's own kernel, laid out as rows of similar lengths. Branches are multiplied block by block with the keys that
their block sees, which are a view here, forwards and backwards: torch's slices cost a zeroed copy of all keys for each block in the
backward pass, its kernel would repeat the keys for every query head, and its joins copy what the trunks say. What is kept for the
backward pass are inputs, outputs and the logarithm of each row's sum; weights are computed again, which is quicker than to read them
from memory.

Legend: S segments · L longest segment · T tokens of all trunks · B tokens of all branches · H query heads · K key heads · G = H / K query
heads of one key head · D head size · q branch tokens of a block · n keys of a block.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LEAST = -60.0
"""What is hidden gets e^LEAST ≈ 1e-26 in place of 0, far below what float32 adds to a sum of at least one: the exponential of −inf takes
ten times as long."""


@dataclass(frozen=True)
class Block:
    """Neighbouring branches of one trunk, whose queries are multiplied together: they read the trunk's tokens `first`..`last` (of T)
    and their own, `start`..`stop` (of B)."""

    first: int
    last: int
    start: int
    stop: int
    common: int  # keys that all of its queries see
    bias: Tensor  # [q, n − common] 0 or −inf


def attend(query: Tensor, key: Tensor, value: Tensor, rows: Seq[Tensor], back: Tensor, blocks: Seq[Block], scale: float) -> Tensor:
    """query [1, H, T+B, D], key and value [1, K, T+B, D] → [1, T+B, H, D], in the type of `value`.

    `rows` and `back` lay the T tokens out as those of `Packed` (ratchet/models/attention.py). Trunks are computed in the type of `value`,
    forwards: in bfloat16 that is several times as fast, and backwards several times slower, so the rest is float32 at least.
    """
    with torch.autocast(query.device.type, enabled=False):  # the types that came are those that are meant
        return _Attention.apply(query[0], key[0], value[0], rows, back, blocks, scale)[None]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: Seq[Tensor], back: Tensor, blocks: Seq[Block], scale: float
    ) -> Tensor:
        """query [H, T+B, D], key and value [K, T+B, D] → [T+B, H, D]."""
        heads, kv_heads, size = len(query), len(key), query.shape[-1]
        out = value.new_empty((query.shape[1], heads, size))
        kept, mixed = [], []
        for places in rows:
            laid = [_laid(one.to(value.dtype), places) for one in (query, key, value)]
            repeated = [laid[0], *(_repeated(one, heads) for one in laid[1:])]
            found, spread = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*repeated, 0.0, True, attn_mask=None, scale=scale)
            mixed.append(found.transpose(1, 2).reshape(-1, heads * size))
            kept += [*laid, found, spread]
        torch.index_select(mixed[0] if len(mixed) == 1 else torch.cat(mixed), 0, back, out=out[: len(back)].view(len(back), heads * size))
        exact = [_exact(one) for one in (query, key, value)] if blocks else []
        sums = []
        for block in blocks:
            part, keys, values = (_rows(exact[0], block, len(back), kv_heads) * scale, *(_own(one, block, len(back)) for one in exact[1:]))
            scores = _scores(part, keys, block)
            most = scores.amax(-1, keepdim=True)
            weights = _exponential(scores.sub_(most), block)
            total = weights.sum(-1, keepdim=True)
            out[len(back) + block.start : len(back) + block.stop] = _unrows(torch.bmm(weights, values).div_(total), block).transpose(0, 1)
            sums.append(most.add_(total.log_()))
        ctx.save_for_backward(query, key, value, out, back, *rows, *kept, *sums)
        ctx.blocks, ctx.scale, ctx.groups = blocks, scale, len(rows)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, back, *saved = ctx.saved_tensors
        rows, kept, sums = saved[: ctx.groups], saved[ctx.groups : 6 * ctx.groups], saved[6 * ctx.groups :]
        gradient = _exact(gradients[0])  # [T+B, H, D]
        size, kv_heads, scale = len(back), len(key), ctx.scale
        found = [torch.empty(one.shape, dtype=gradient.dtype, device=one.device) for one in (query, key, value)]
        _back_through_trunks(gradient[:size], rows, back, kept, scale, found)
        d_query, d_key, d_value = found
        if ctx.blocks:
            exact = [_exact(one) for one in (query, key, value)]
            upstream, said = (one[size:].transpose(0, 1) for one in (gradient, _exact(out)))
            inner = (upstream * said).sum(-1, keepdim=True)  # [H, B, 1]
            d_key[:, size:] = 0
            d_value[:, size:] = 0
            for block, total in zip(ctx.blocks, sums, strict=True):
                part, keys, values = (_rows(exact[0], block, size, kv_heads) * scale, *(_own(one, block, size) for one in exact[1:]))
                weights = _exponential(_scores(part, keys, block).sub_(total), block)
                d_part = _rows(upstream, block, 0, kv_heads)
                _add(d_value, torch.bmm(weights.transpose(1, 2), d_part), block, size)
                d_scores = torch.bmm(d_part, values.transpose(1, 2)).sub_(_rows(inner, block, 0, kv_heads)).mul_(weights)
                d_query[:, size + block.start : size + block.stop] = _unrows(torch.bmm(d_scores, keys).mul_(scale), block)
                _add(d_key, torch.bmm(d_scores.transpose(1, 2), part), block, size)
        return (*(one.to(given.dtype) for one, given in zip(found, (query, key, value), strict=True)), None, None, None, None)


def _back_through_trunks(gradient: Tensor, rows: Seq[Tensor], back: Tensor, kept: Seq[Tensor], scale: float, into: Seq[Tensor]) -> None:
    """Writes the gradients of the trunks' queries, keys and values, [h, :T, D] each. gradient [T, H, D]."""
    heads, size = gradient.shape[1:]
    laid = gradient.new_zeros((sum(one.numel() for one in rows), heads * size))  # what fills a row up has none
    laid.index_copy_(0, back, gradient.reshape(len(back), -1))
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    parts: tuple[list[Tensor], ...] = ([], [], [])
    for number, (places, upstream) in enumerate(zip(rows, laid.split([one.numel() for one in rows]), strict=True)):
        *inputs, out, spread = kept[5 * number : 5 * number + 5]
        query, key, value = (_exact(one) for one in inputs)
        repeated = (query, _repeated(key, heads), _repeated(value, heads))
        upstream = upstream.view(*places.shape, heads, size).transpose(1, 2)
        found = backward(upstream, *repeated, _exact(out), spread, 0.0, True, attn_mask=None, scale=scale)
        for part, one, given in zip(parts, found, inputs, strict=True):
            whole = one if one.shape[1] == given.shape[1] else one.unflatten(1, (given.shape[1], -1)).sum(2)
            part.append(whole.transpose(0, 1).flatten(1, 2))  # [h, S·L, D]
    for part, whole in zip(parts, into, strict=True):
        whole[:, : len(back)] = (part[0] if len(part) == 1 else torch.cat(part, 1)).index_select(1, back)


def _laid(of: Tensor, places: Tensor) -> Tensor:
    """[h, T+B, D] → [S, h, L, D]."""
    return of.index_select(1, places.flatten()).view(len(of), *places.shape, -1).transpose(0, 1)


def _repeated(laid: Tensor, heads: int) -> Tensor:
    """[S, K, L, D] → [S, H, L, D]."""
    return laid if laid.shape[1] == heads else laid.repeat_interleave(heads // laid.shape[1], dim=1)


def _exact(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _rows(of: Tensor, block: Block, size: int, kv_heads: int) -> Tensor:
    """[H, T+B, d] → the block's [K, G·q, d]: the query heads of a key head become further rows, so that keys are read once."""
    return of[:, size + block.start : size + block.stop].reshape(kv_heads, -1, of.shape[-1])


def _unrows(rows: Tensor, block: Block) -> Tensor:
    """[K, G·q, D] → [H, q, D]."""
    return rows.reshape(-1, block.stop - block.start, rows.shape[-1])


def _own(of: Tensor, block: Block, size: int) -> Tensor:
    """[K, T+B, D] → the block's keys [K, n, D]."""
    return torch.cat([of[:, block.first : block.last], of[:, size + block.start : size + block.stop]], 1)


def _scores(rows: Tensor, keys: Tensor, block: Block) -> Tensor:
    """[K, G·q, n], −inf where a query does not see a key."""
    scores = torch.bmm(rows, keys.transpose(1, 2))
    _of_some(scores, block).add_(block.bias)
    return scores


def _exponential(scores: Tensor, block: Block) -> Tensor:
    """In place: torch's own softmax takes twice as long."""
    _of_some(scores, block).clamp_(min=LEAST)
    return scores.exp_()


def _of_some(scores: Tensor, block: Block) -> Tensor:
    """[K, G, q, n − common]: of the keys that not all of the block's queries see."""
    return scores.view(len(scores), -1, block.stop - block.start, scores.shape[-1])[..., block.common :]


def _add(to: Tensor, gradient: Tensor, block: Block, size: int) -> None:
    """The reverse of `_own`."""
    seen = block.last - block.first
    to[:, block.first : block.last] += gradient[:, :seen]
    to[:, size + block.start : size + block.stop] += gradient[:, seen:]
