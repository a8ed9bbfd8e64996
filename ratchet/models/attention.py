"""One attention function for any transformers causal LM, in two forms: packed segments and a cache of slots.

transformers looks an attention implementation up by name and hands through the keyword arguments of the forward call, so
the model's own code (projections, rotary positions, norms) stays as it is and only the product of queries and keys is ours.

Legend: T tokens of a packed pass · S segments · L longest segment or cache length · H query heads · K key heads · G = H / K
query heads of one key head · D head size · B rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ratchet.models import cpu_attention

NAME = "ratchet"
GROWTH = 256  # positions
SIMILAR = 0.75  # of the longest segment of a group
SMALLEST = 8  # rows and tokens of a call: below it fp32 results change bits with their number, so smaller calls are filled up
WASTE = 1.25  # so many times the rows that read may be computed, where that saves the copy of their keys and values
SCORES = 1 << 21  # query positions × keys of rows that are read together: their mask takes as many numbers, times G
FEW = 24  # new tokens of a row: below, products written out are quicker than torch's kernel, which never writes the scores to memory


@dataclass
class Packed:
    """Where the segments of a packed pass lie. Attention runs inside each segment, causal.

    A dense mask over packed episodes costs 2.4–2.6 times as much; here queries, keys and values are laid out as
    [S, L] rows for the product alone, and every linear layer sees only real tokens.
    """

    rows: list[Tensor]  # [S, L] each, segments of similar lengths: index into the T packed tokens; 0 where a row is shorter than L
    back: Tensor  # [T] index into the laid-out positions of all of them

    @classmethod
    def of(cls, lengths: list[int], device: torch.device | str = "cpu") -> Packed:
        size = np.array(lengths)
        start = np.cumsum(size) - size
        rows, back, laid = [], np.empty(int(size.sum()), np.int64), 0
        for alike in of_similar_length(size):
            place = np.arange(size[alike].max())
            inside = place[None, :] < size[alike, None]
            index = np.where(inside, start[alike, None] + place[None, :], 0)
            back[index[inside]] = laid + np.flatnonzero(inside)
            rows.append(torch.from_numpy(index).to(device))
            laid += index.size
        return cls(rows, torch.from_numpy(back).to(device))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, H, T, D], key and value [1, K, T, D] → [1, T, H, D]."""
        if query.device.type == "cpu":
            return cpu_attention.attend(query, key, value, self.rows, self.back, scale)
        heads, size = query.shape[1], query.shape[-1]
        mixed = [self._product(rows, query, key, value, scale) for rows in self.rows]
        laid = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return laid.index_select(0, self.back).view(1, -1, heads, size)

    @staticmethod
    def _product(rows: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[S·L, H·D] of the segments in `rows`."""
        (segments, longest), heads, kv_heads, size = rows.shape, query.shape[1], key.shape[1], query.shape[-1]

        def lay_out(packed: Tensor) -> Tensor:  # [1, h, T, D] → [S, h, L, D]
            picked = packed[0].index_select(1, rows.flatten())
            return picked.view(-1, segments, longest, size).transpose(0, 1)

        laid_q, laid_k, laid_v = lay_out(query), lay_out(key), lay_out(value)
        if kv_heads != heads:
            laid_k = laid_k.repeat_interleave(heads // kv_heads, dim=1)
            laid_v = laid_v.repeat_interleave(heads // kv_heads, dim=1)
        laid_q, laid_k = laid_q.to(value.dtype), laid_k.to(value.dtype)  # under autocast rotary positions may have widened them
        with torch.autocast(query.device.type, enabled=False):  # the types that came are those that are meant
            mixed = torch.nn.functional.scaled_dot_product_attention(laid_q, laid_k, laid_v, is_causal=True, scale=scale)
        return mixed.transpose(1, 2).reshape(-1, heads * size)


def of_similar_length(size: np.ndarray) -> Iterator[np.ndarray]:
    """The segments in groups, longest first, none shorter than SIMILAR of its group's longest: a product is as wide as that one is long,
    and costs its square."""
    order = np.argsort(-size, kind="stable")
    while len(order):
        alike = size[order] >= SIMILAR * size[order[0]]
        yield order[alike]
        order = order[~alike]


@dataclass
class _Group:
    """Rows of a call with about equally many new tokens, laid out as [g, n] for the products of queries and keys alone."""

    rows: Tensor | slice  # [g] rows of the cache; those of a slice are read where they lie
    count: int  # g
    picked: Tensor | None  # [g·n] index into the T packed tokens, any where a row is shorter; None: they lie in this order
    kept: Tensor  # [t] index into the g·n laid-out positions of the group's t tokens
    into: Tensor  # [t] which of the T packed tokens they are
    visible: int  # keys that any query of the group may see
    shown: int  # keys that every query of the group sees
    bias: Tensor  # [g, 1, n, visible − shown] 0 or −inf
    mask: Tensor | None = None  # [g, 1, G·n, visible], made in the first layer

    def masked(self, repeats: int) -> Tensor:
        """0 or −inf for every query and key, where `repeats` query heads share a key head."""
        if self.mask is None:
            width = self.bias.shape[2]
            whole = self.bias.new_zeros((self.count, repeats, width, self.visible))
            whole[..., self.shown :] = self.bias
            self.mask = whole.view(self.count, 1, repeats * width, self.visible)
        return self.mask


@dataclass
class SlotCache:
    """Keys and values of B running episodes, one slot each, kept across turns. Memory grows with the longest of them, in steps of
    GROWTH positions up to `length`: layers × 2 × B × K × D × 4 bytes a position (SmolLM2-135M with 32 slots: 1.5 MB).

    `place(slots, start, sizes)` says what the next forward call writes: `sizes[i]` packed tokens behind the first `start[i]` of a
    slot. Linear layers see real tokens only. In which row of the cache a slot lies may change (`bring_forward`): rows that decode
    lie together at the front, so that no token costs a copy of keys.
    """

    slots: int
    length: int
    keys: list[Tensor] = field(default_factory=list)  # a layer each: [B, K, D, L], as a few query rows are multiplied twice as fast
    values: list[Tensor] = field(default_factory=list)  # [B, K, L, D]; the last place of both takes what padding writes
    row: np.ndarray = field(init=False)  # [B] of each slot
    groups: list[_Group] = field(default_factory=list)
    written: tuple[Tensor, Tensor] = field(default_factory=lambda: (torch.empty(0), torch.empty(0)))  # rows, positions [T]
    end: int = 0  # one past the last position that this call writes

    def __post_init__(self) -> None:
        self.row = np.arange(self.slots)

    def bring_forward(self, slots: np.ndarray, used: np.ndarray) -> None:
        """Moves the rows of `slots` to the front; `used` [B] tokens that each slot holds."""
        out = slots[self.row[slots] >= len(slots)]
        if not len(out):
            return
        others = np.setdiff1d(np.flatnonzero(self.row < len(slots)), slots)
        upto, kept = int(used[out].max()), int(used[others].max())
        here, there = (torch.from_numpy(self.row[some].copy()) for some in (out, others))
        for held in (*(keys.transpose(2, 3) for keys in self.keys), *self.values):
            moved = held[here, :, :upto]
            if kept:
                held[here, :, :kept] = held[there, :, :kept]
            held[there, :, :upto] = moved
        self.row[out], self.row[others] = self.row[others], self.row[out]

    def place(self, slots: np.ndarray, start: np.ndarray, sizes: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
        """Positions [1, T] of the call's tokens, which are at least SMALLEST: padding follows the last one."""
        rows, total = self.row[slots], int(sizes.sum())
        offsets = np.cumsum(sizes) - sizes
        positions = np.arange(total) - np.repeat(offsets - start, sizes)
        padding = max(0, SMALLEST - total)
        of_row = np.append(np.repeat(rows, sizes), np.zeros(padding, np.int64))
        places = np.append(positions, np.full(padding, self.length - 1))
        self.written = torch.from_numpy(of_row).to(device), torch.from_numpy(places).to(device)
        self.end = int(places.max()) + 1
        count = len(slots)
        if sizes.max() == 1 and rows.max() == count - 1:
            self.groups = [self._front(rows, start, device)]
        else:
            self.groups = list(self._grouped(rows, start, sizes, offsets, device))
        return torch.from_numpy(places).to(device)[None]

    def _front(self, rows: np.ndarray, start: np.ndarray, device: torch.device | str) -> _Group:
        """One token in each of the cache's first rows."""
        count = max(len(rows), min(SMALLEST, self.slots))
        at, picked = np.full(count, start.min()), np.zeros(count, np.int64)
        at[rows], picked[rows] = start, np.arange(len(rows))
        in_order = count == len(rows) and bool((picked == np.arange(count)).all())
        kept = np.arange(len(rows))
        return self._group(slice(count), at[:, None], None if in_order else picked, rows, kept, int(start.max()) + 1, device)

    def _grouped(
        self, rows: np.ndarray, start: np.ndarray, sizes: np.ndarray, offsets: np.ndarray, device: torch.device | str
    ) -> Iterator[_Group]:
        """Long and short rows apart, so that little is padded, and in pieces that keep the scores small."""
        kinds = np.ceil(np.log2(np.maximum(sizes, 8))).astype(int)
        for kind in np.unique(kinds):
            alike = np.flatnonzero(kinds == kind)
            alike = alike[np.argsort(rows[alike])]
            width, longest = int(sizes[alike].max()), int((start + sizes)[alike].max())
            piece = max(SMALLEST, SCORES // (width * longest))
            for first in range(0, len(alike), piece):
                chosen = alike[first : first + piece]
                where, place = self._rows(rows[chosen])
                count = len(where) if isinstance(where, np.ndarray) else where.stop - where.start
                inside = np.arange(width)[None, :] < sizes[chosen, None]
                picked, at = np.zeros((count, width), np.int64), np.full((count, width), start[chosen].min())
                picked[place] = np.where(inside, offsets[chosen, None] + np.arange(width)[None, :], 0)
                at[place] = start[chosen, None] + np.arange(width)[None, :]
                kept = (place[:, None] * width + np.arange(width)[None, :])[inside]
                yield self._group(where, at, picked.ravel(), kept, picked[place][inside], int((start + sizes)[chosen].max()), device)

    def _rows(self, rows: np.ndarray) -> tuple[np.ndarray | slice, np.ndarray]:
        """(rows of the cache to compute, at least SMALLEST; where the given ones, sorted, are among them). Rows that lie about together
        are a slice, whose keys are not copied; what lies between them is computed for nothing."""
        first, end = int(rows[0]), int(rows[-1]) + 1
        if end - first < SMALLEST:
            first = max(0, min(first, self.slots - SMALLEST))
            end = min(first + SMALLEST, self.slots)
        if end - first <= max(SMALLEST, WASTE * len(rows)):
            return slice(first, end), rows - first
        filling = np.setdiff1d(np.arange(self.slots), rows)[: max(0, SMALLEST - len(rows))]
        return np.concatenate([rows, filling]), np.arange(len(rows))

    def _group(
        self,
        rows: np.ndarray | slice,
        at: np.ndarray,
        picked: np.ndarray | None,
        kept: np.ndarray,
        into: np.ndarray,
        visible: int,
        device: torch.device | str,
    ) -> _Group:
        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        shown = int(at.min()) + 1
        hidden = torch.arange(shown, visible, device=device)[None, None, None, :] > tensor(at)[:, None, :, None]
        bias = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))
        where = rows if isinstance(rows, slice) else tensor(rows)
        return _Group(where, len(at), None if picked is None else tensor(picked), tensor(kept), tensor(into), visible, shown, bias)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, H, T, D], key and value [1, K, T, D] → [1, T, H, D]; writes the new keys and values first."""
        self._make_room(layer, key)
        rows, places = self.written
        self.keys[layer][rows, :, :, places] = key[0].transpose(0, 1)
        self.values[layer][rows, :, places] = value[0].transpose(0, 1)
        only, scaled = self.groups[0], query[0] if scale == 1 else query[0] * scale
        if len(self.groups) == 1 and only.picked is None:
            return self._product(layer, only, scaled, key.shape[1])[None]
        out = query.new_zeros((query.shape[2], query.shape[1], query.shape[3]))
        for group in self.groups:
            picked = scaled if group.picked is None else scaled.index_select(1, group.picked)
            out[group.into] = self._product(layer, group, picked, key.shape[1])[group.kept]
        return out[None]

    def _product(self, layer: int, group: _Group, query: Tensor, kv_heads: int) -> Tensor:
        """query [H, g·n, D], scaled → [g·n, H, D]."""
        heads, _, size = query.shape
        seen_k, seen_v = self.keys[layer][group.rows, ..., : group.visible], self.values[layer][group.rows, :, : group.visible]
        # The G query heads of a key head become further query rows: keys are read once, never repeated.
        shape = (kv_heads, heads // kv_heads, group.count, -1, size)
        grouped = query.view(shape).permute(2, 0, 1, 3, 4).reshape(group.count, kv_heads, -1, size)
        if group.bias.shape[2] >= FEW:
            laid_k = seen_k.transpose(2, 3).contiguous()
            mixed = torch.nn.functional.scaled_dot_product_attention(grouped, laid_k, seen_v, group.masked(heads // kv_heads), scale=1.0)
            return self._unlaid(mixed, heads)
        scores = torch.matmul(grouped, seen_k)
        if group.shown < group.visible:
            scores.view(group.count, kv_heads, heads // kv_heads, -1, group.visible)[..., group.shown :].add_(group.bias[:, :, None])
        weights = torch.softmax(scores, -1).to(seen_v.dtype)
        return self._unlaid(torch.matmul(weights, seen_v), heads)

    @staticmethod
    def _unlaid(mixed: Tensor, heads: int) -> Tensor:
        """[g, K, G·n, D] → [g·n, H, D]."""
        count, kv_heads, _, size = mixed.shape
        return mixed.view(count, kv_heads, heads // kv_heads, -1, size).permute(0, 3, 1, 2, 4).reshape(-1, heads, size)

    def _make_room(self, layer: int, like: Tensor) -> None:
        """Room for this call's last position in layer `layer`; what is there stays."""
        if len(self.keys) <= layer:
            kv_heads, size = like.shape[1], like.shape[3]
            self.keys.append(like.new_zeros((self.slots, kv_heads, size, 0)))
            self.values.append(like.new_zeros((self.slots, kv_heads, 0, size)))
        room = self.values[layer].shape[2]
        if self.end > room:
            more = min(-(-self.end // GROWTH) * GROWTH, self.length) - room
            self.keys[layer] = torch.nn.functional.pad(self.keys[layer], (0, more))
            self.values[layer] = torch.nn.functional.pad(self.values[layer], (0, 0, 0, more))


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Packed | SlotCache | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """The function that transformers calls in every layer; `layout` comes from the caller of the model's forward."""
    if layout is None:
        raise ValueError("attention implementation 'ratchet' needs layout=Packed(...) or SlotCache(...) in the forward call")
    for name in ("sliding_window", "softcap", "s_aux"):
        if options.get(name) is not None:
            raise NotImplementedError(f"attention implementation 'ratchet' does not compute `{name}`; set it to null in the model's config.json")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(layout, SlotCache):
        return layout.attend(int(module.layer_idx), query, key, value, scale), None  # type: ignore[arg-type]
    return layout.attend(query, key, value, scale), None


def _no_mask(*_: object, **__: object) -> None:
    """The layout knows what may be seen; transformers builds no mask."""
    return None


def register() -> None:
    """Makes `attn_implementation="ratchet"` known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _no_mask)
