"""Attention of a packed pass on a CPU: its trunks, and the branches that continue them, in one operation.

Both go through torch's own kernel, which never writes the scores to memory: trunks laid out as rows of similar lengths, branches as
blocks of neighbours with the keys that they see, blocks of similarly many keys together. The query heads of a key head become further
query rows of a block: keys are not repeated, and the kernel takes six tenths of the time that it needs for as many heads of few rows.
Keys are picked by index and added up by slices on the way back: torch's own gradient of a slice is a zeroed copy of all keys, and its
joins copy what the trunks say.

Legend: S segments · L longest segment · T tokens of all trunks · B tokens of all branches · H query heads · K key heads · G = H / K query
heads of one key head · D head size · N blocks of a bunch · q most branch tokens of its blocks · n most keys of its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Neighbouring branches of one trunk, whose queries are multiplied together: they read the trunk's tokens `first`..`last` (of T)
    and their own, `start`..`stop` (of B)."""

    first: int
    last: int
    start: int
    stop: int

    @property
    def keys(self) -> int:
        return self.last - self.first + self.stop - self.start


@dataclass
class Bunch:
    """Blocks that are laid out together; where one has fewer queries or keys than another, anything stands in its row."""

    blocks: list[Block]
    queries: Tensor  # [N, q] index into the T+B tokens
    keys: Tensor  # [N, n] likewise: the trunk's tokens, then the block's own
    mask: Tensor  # [N, 1, q, n] 0 or −inf; rows that stand for nothing see everything, what stands for no key is seen by none but them
    repeated: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)

    def masked(self, groups: int, dtype: torch.dtype) -> Tensor:
        """The mask of G query heads, [N, 1, G·q, n]; made in the first layer."""
        if (groups, dtype) not in self.repeated:
            self.repeated[groups, dtype] = self.mask.to(dtype).repeat(1, 1, groups, 1)
        return self.repeated[groups, dtype]


Bunched = tuple[list[Bunch], Tensor]
"""Bunches, and [B] index into the laid-out positions of all of them."""


def attend(
    query: Tensor, key: Tensor, value: Tensor, rows: Seq[Tensor], back: Tensor, scale: float, branches: Bunched | None = None
) -> Tensor:
    """query [1, H, T+B, D], key and value [1, K, T+B, D] → [1, T+B, H, D], in the type of `value`.

    `rows` and `back` lay the T tokens out as those of `Packed` (ratchet/models/attention.py), `branches` the B ones. It is computed in
    the type of `value`, forwards: in bfloat16 that is several times as fast, and backwards several times slower, so that is float32 at least.
    """
    with torch.autocast(query.device.type, enabled=False):  # the types that came are those that are meant
        return _Attention.apply(query[0], key[0], value[0], rows, back, scale, branches)[None]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: Seq[Tensor], back: Tensor, scale: float, branches: Bunched | None
    ) -> Tensor:
        """query [H, T+B, D], key and value [K, T+B, D] → [T+B, H, D]."""
        out = value.new_empty((query.shape[1], len(query), query.shape[-1]))
        kept: list[Tensor] = []
        _forward(query, key, value, [(places, places, None) for places in rows], back, out[: len(back)], kept, scale)
        if branches is not None:
            bunches, branch_back = branches
            masked = [(one.queries, one.keys, one.masked(len(query) // len(key), value.dtype)) for one in bunches]
            _forward(query, key, value, masked, branch_back, out[len(back) :], kept, scale)
        ctx.save_for_backward(back, *rows, *kept)
        ctx.branches, ctx.scale, ctx.rows = branches, scale, len(rows)
        ctx.shapes = [(one.shape, one.dtype) for one in (query, key, value)]
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back, *saved = ctx.saved_tensors
        rows, kept = saved[: ctx.rows], saved[ctx.rows :]
        gradient, size = _exact(gradients[0]), len(back)  # [T+B, H, D]
        found = [torch.empty(shape, dtype=gradient.dtype, device=gradient.device) for shape, _ in ctx.shapes]
        trunks = _backward(gradient[:size], [(places, None) for places in rows], back, kept[: KEPT * ctx.rows], ctx.scale)
        for whole, *parts in zip(found, *trunks, strict=True):
            whole[:, :size] = _packed(parts, back)
        if ctx.branches is not None:
            bunches, branch_back = ctx.branches
            groups = len(found[0]) // len(found[1])
            masked = [(one.queries, one.masked(groups, gradient.dtype)) for one in bunches]
            branches = _backward(gradient[size:], masked, branch_back, kept[KEPT * ctx.rows :], ctx.scale)
            found[0][:, size:] = _packed([part[0] for part in branches], branch_back)
            for bunch, (_, *parts) in zip(bunches, branches, strict=True):
                for whole, part in zip(found[1:], parts, strict=True):
                    for block, one in zip(bunch.blocks, part, strict=True):
                        seen, own = block.last - block.first, block.stop - block.start
                        whole.narrow(1, block.first, seen).add_(one.narrow(1, 0, seen))  # += would copy the sum once more
                        whole.narrow(1, size + block.start, own).copy_(one.narrow(1, seen, own))
        return (*(one.to(dtype) for one, (_, dtype) in zip(found, ctx.shapes, strict=True)), None, None, None, None)


KEPT = 5
"""Tensors that `_forward` keeps of a layout."""


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layouts: Seq[tuple[Tensor, Tensor, Tensor | None]],
    back: Tensor,
    out: Tensor,
    kept: list[Tensor],
    scale: float,
) -> None:
    """Writes what queries find into `out` [t, H, D]: laid out as (places of queries, of keys, mask or None where they are causal), `back`
    [t] says where each lies there."""
    heads, size, mixed = len(query), query.shape[-1], []
    for queries, keys, mask in layouts:
        laid = (_laid(query, queries, value.dtype), _laid(key, keys, value.dtype), _laid(value, keys, value.dtype))
        given = _given(*laid, heads // len(key) if mask is None else 1)
        found, spread = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*given, 0.0, mask is None, attn_mask=mask, scale=scale)
        mixed.append(found.reshape(laid[0].shape).transpose(1, 2).reshape(-1, heads * size))
        kept += [*(laid if mask is None else given), found, spread]  # repeated keys are not worth their memory
    torch.index_select(mixed[0] if len(mixed) == 1 else torch.cat(mixed), 0, back, out=out.view(len(back), heads * size))


def _backward(
    gradient: Tensor, layouts: Seq[tuple[Tensor, Tensor | None]], back: Tensor, kept: Seq[Tensor], scale: float
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The gradients of each layout's queries [N, H, q, D], keys and values [N, K, n, D]. gradient [t, H, D]."""
    heads, size = gradient.shape[1:]
    laid = gradient.new_zeros((sum(places.numel() for places, _ in layouts), heads * size))  # what fills a row up has none
    laid.index_copy_(0, back, gradient.reshape(len(back), -1))
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    parts = []
    for number, ((places, mask), upstream) in enumerate(zip(layouts, laid.split([places.numel() for places, _ in layouts]), strict=True)):
        *inputs, out, spread = kept[KEPT * number : KEPT * (number + 1)]
        query, key, value = (_exact(one) for one in inputs)
        groups = heads // key.shape[1]
        pieces = groups if mask is None else _pieces(len(places) * key.shape[1], groups)
        given = _given(query, key, value, pieces)
        shape, own = given[0].shape, None if mask is None else mask.chunk(pieces, 2)[0]  # it is the same for every query head
        upstream = upstream.view(*places.shape, heads, size).transpose(1, 2).reshape(shape)
        out, spread = _exact(out).reshape(shape), spread.reshape(shape[:3])
        d_query, *others = backward(upstream, *given, out, spread, 0.0, mask is None, attn_mask=own, scale=scale)
        d_key, d_value = (one if one.shape == of.shape else one.unflatten(1, (of.shape[1], -1)).sum(2) for one, of in zip(others, inputs[1:], strict=True))
        parts.append((d_query.reshape(len(places), heads, -1, size), d_key, d_value))
    return parts


def _given(query: Tensor, key: Tensor, value: Tensor, pieces: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel gets of query [N, H, q, D] or [N, K, G·q, D], key and value [N, K, n, D]: each key head `pieces` times, with so many parts
    of its query heads as further rows, [N, K·pieces, G·q / pieces, D]. G pieces, a query head each, are what the causal mask needs."""
    count, kv_heads, _, size = key.shape
    parted = query.reshape(count, kv_heads * pieces, -1, size)
    return (parted, key, value) if pieces == 1 else (parted, key.repeat_interleave(pieces, dim=1), value.repeat_interleave(pieces, dim=1))


def _pieces(units: int, groups: int) -> int:
    """Into how many pieces a key head's G query heads are parted for the way back, where a thread takes whole key heads of whole blocks:
    the fewest that leave no thread longer at work than it must be."""
    threads = torch.get_num_threads()
    return min((pieces for pieces in range(1, groups + 1) if groups % pieces == 0), key=lambda pieces: (-(-units * pieces // threads) / pieces, pieces))


def _packed(parts: Seq[Tensor], back: Tensor) -> Tensor:
    """The reverse of `_laid`: [N, h, L, D] of each layout → [h, t, D] in the order of `back` [t]."""
    laid = [part.transpose(0, 1).flatten(1, 2) for part in parts]
    return (laid[0] if len(laid) == 1 else torch.cat(laid, 1)).index_select(1, back)


def _laid(of: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    """[h, T+B, D] → [N, h, L, D]."""
    return of.to(dtype).index_select(1, places.flatten()).view(len(of), *places.shape, -1).transpose(0, 1)


def _exact(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
