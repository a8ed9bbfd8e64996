"""One attention function for any transformers causal LM, in two forms: packed segments and a cache of slots.

transformers looks an attention implementation up by name and hands through the keyword arguments of the forward call, so
the model's own code (projections, rotary positions, norms) stays as it is and only the product of queries and keys is ours.

Legend: T tokens of a packed pass · S segments · L longest segment or cache length · H query heads · K key heads · G = H / K
query heads of one key head · D head size · B rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

NAME = "ratchet"
GROWTH = 256  # positions
LARGE = 1 << 16  # numbers in one row's visible keys, from which copying them for a batch costs more than a product a row


@dataclass
class Packed:
    """Where the segments of a packed pass lie. Attention runs inside each segment, causal.

    A dense mask over packed episodes costs 2.4–2.6 times as much; here queries, keys and values are laid out as
    [S, L] rows for the product alone, and every linear layer sees only real tokens.
    """

    rows: Tensor  # [S, L] index into the T packed tokens; 0 where a row is shorter than L
    back: Tensor  # [T] index into the S·L laid-out positions

    @classmethod
    def of(cls, lengths: list[int], device: torch.device | str = "cpu") -> Packed:
        longest = max(lengths)
        size = torch.tensor(lengths)
        start = torch.cumsum(size, 0) - size
        place = torch.arange(longest)
        inside = place[None, :] < size[:, None]
        rows = torch.where(inside, start[:, None] + place[None, :], 0)
        back = torch.nonzero(inside.flatten(), as_tuple=False).flatten()
        return cls(rows.to(device), back.to(device))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, H, T, D], key and value [1, K, T, D] → [1, T, H, D]."""
        segments, longest = self.rows.shape
        heads, kv_heads, size = query.shape[1], key.shape[1], query.shape[-1]

        def lay_out(packed: Tensor) -> Tensor:  # [1, h, T, D] → [S, h, L, D]
            picked = packed[0].index_select(1, self.rows.flatten())
            return picked.view(-1, segments, longest, size).transpose(0, 1)

        laid_k, laid_v = lay_out(key), lay_out(value)
        if kv_heads != heads:
            laid_k = laid_k.repeat_interleave(heads // kv_heads, dim=1)
            laid_v = laid_v.repeat_interleave(heads // kv_heads, dim=1)
        out = torch.nn.functional.scaled_dot_product_attention(lay_out(query), laid_k, laid_v, is_causal=True, scale=scale)
        return out.transpose(1, 2).reshape(-1, heads * size).index_select(0, self.back).view(1, -1, heads, size)


@dataclass
class SlotCache:
    """Keys and values of B running episodes, one slot each, kept across turns. Memory grows with the longest of them, in steps of
    GROWTH positions up to `length`: layers × 2 × B × K × D × 4 bytes a position (SmolLM2-135M with 32 slots: 1.5 MB).

    `place(rows, start, width, real)` says which slots the next forward call writes and from which position on; padded
    positions lie behind a row's end, where the next call writes over them and no query can see them.
    """

    slots: int
    length: int
    keys: list[Tensor] = field(default_factory=list)  # a layer each: [B, K, L, D]
    values: list[Tensor] = field(default_factory=list)
    rows: Tensor | None = None  # [b] slots of this call; None = all, in order
    positions: Tensor = field(default_factory=lambda: torch.empty(0))  # [b, n] positions of the new tokens
    end: int = 0  # one past the last position that this call writes
    visible: int = 0  # keys that any query of this call's real rows may see
    bias: Tensor = field(default_factory=lambda: torch.empty(0))  # [b, 1, n, visible] 0 or −inf

    def place(self, rows: Tensor | None, start: Tensor, width: int, real: int) -> None:
        """The first `real` rows decide how many keys are read: bits must not depend on what the rows that only pad hold."""
        self.rows = rows
        self.positions = start[:, None] + torch.arange(width, device=start.device)[None, :]
        self.visible = min(int(self.positions[:real].max()) + 1, self.length)
        self.positions = self.positions.clamp(max=self.length - 1)
        self.end = int(self.positions.max()) + 1
        seen = torch.arange(self.visible, device=start.device)[None, None, None, :] <= self.positions[:, None, :, None]
        self.bias = torch.zeros(seen.shape, device=start.device).masked_fill_(~seen, float("-inf"))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [b, H, n, D], key and value [b, K, n, D] → [b, n, H, D]; writes the new keys and values first."""
        self._make_room(layer, key)
        rows = torch.arange(self.slots, device=key.device) if self.rows is None else self.rows
        self.keys[layer][rows[:, None], :, self.positions] = key.transpose(1, 2)
        self.values[layer][rows[:, None], :, self.positions] = value.transpose(1, 2)
        seen_k = self.keys[layer][:, :, : self.visible]
        seen_v = self.values[layer][:, :, : self.visible]
        product = torch.matmul
        if self.rows is not None and seen_k[0].numel() >= LARGE and key.device.type == "cpu":
            product = partial(_row_by_row, rows=rows.tolist())
        elif self.rows is not None:
            seen_k, seen_v = seen_k[rows], seen_v[rows]
        rows_n, heads, width, size = query.shape
        kv_heads = key.shape[1]
        # The G query heads of a key head become further query rows: keys are read once, never repeated.
        grouped = query.reshape(rows_n, kv_heads, (heads // kv_heads) * width, size)
        scores = product(grouped * scale, seen_k.transpose(2, 3))
        scores = scores.view(rows_n, kv_heads, heads // kv_heads, width, -1) + self.bias[:, :, None]
        mixed = product(torch.softmax(scores, -1).to(seen_v.dtype).view(rows_n, kv_heads, -1, self.visible), seen_v)
        return mixed.view(rows_n, heads, width, size).transpose(1, 2)


    def _make_room(self, layer: int, like: Tensor) -> None:
        """Room for this call's last position in layer `layer`; what is there stays."""
        if len(self.keys) <= layer:
            for held in (self.keys, self.values):
                held.append(like.new_zeros((self.slots, like.shape[1], 0, like.shape[3])))
        room = self.keys[layer].shape[2]
        if self.end > room:
            more = min(-(-self.end // GROWTH) * GROWTH, self.length) - room
            for held in (self.keys, self.values):
                held[layer] = torch.nn.functional.pad(held[layer], (0, 0, 0, more))


def _row_by_row(left: Tensor, right: Tensor, rows: list[int]) -> Tensor:
    """left [b, K, m, x] · right [rows of B, K, x, n] → [b, K, m, n], without a copy of the rows (2.5 to 3.5 times as fast)."""
    out = left.new_empty((*left.shape[:3], right.shape[3]))
    for line, row in enumerate(rows):
        torch.bmm(left[line], right[row], out=out[line])
    return out


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
