"""Questions about many prefixes of episodes in the episodes' own pass, and the answers written in parallel over what it left.

A question is a branch of its episode (ratchet/models/branches.py), so T prefixes cost |episode| + T questions and not Σ_t |h_t|. The pass
keeps its keys and values; what is written behind a question reads those of its episode up to its point and its own.

Legend: S trunks · L longest trunk · B branches · O longest branch · b branches read on · m new tokens of each · R most of them of one trunk ·
H query heads · K key heads · G = H / K · D head size · W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.learners.batches import filled
from ratchet.models.branches import Branched, Run
from ratchet.models.fused import hidden_of
from ratchet.models.parts import head

BUDGET = 4096  # tokens of a pass: what lies between two layers stays in a processor's cache
TOGETHER = 65_536  # tokens of the passes whose answers are written together


@dataclass(frozen=True)
class Ask:
    """A question behind token `at` of a trunk and, where there are any, the tokens `extra`, which the trunk does not have."""

    at: int
    extra: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trunk:
    """An episode's tokens and what is asked about them, sorted by `at`."""

    ids: np.ndarray  # int64 [n]
    asks: tuple[Ask, ...]


@dataclass
class _Recording:
    """A layout that remembers the keys and values of each layer, in the order in which layers call it."""

    inner: Branched
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # [K, T + B, D] each

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        self.kept.append((key[0], value[0]))
        return self.inner.attend(query, key, value, scale)


def packed(trunks: Sequence[Trunk], budget: int = BUDGET, behind: int = 0) -> list[list[int]]:
    """Indices of `trunks` in groups of at most `budget` tokens, `behind` a question included, longest first; those without a question are
    left out."""
    sizes = {i: one.asks[-1].at + 1 + sum(len(ask.extra) + behind for ask in one.asks) for i, one in enumerate(trunks) if one.asks}
    return list(filled(sorted(sizes, key=lambda i: (-sizes[i], i)), budget, sizes.__getitem__))


@dataclass
class Pass:
    """One pass over some trunks: hidden states of their branches, and the keys and values for what is written behind them."""

    hidden: Tensor  # [Σ branch tokens, W]
    kept: list[tuple[Tensor, Tensor]]
    lengths: list[int]
    runs: list[Run]

    @classmethod
    def of(cls, model: Any, trunks: Sequence[Trunk], question: Sequence[int], *, keep: bool = True) -> Pass:
        """Reads every trunk up to its last point, and `question` behind the extra tokens of each ask."""
        device = next(model.parameters()).device
        cut = [one.ids[: one.asks[-1].at + 1] for one in trunks]
        branches = [(number, ask.at, [*ask.extra, *question]) for number, one in enumerate(trunks) for ask in one.asks]
        runs = [Run(number, at, len(ids)) for number, at, ids in branches]
        ids = np.concatenate([*cut, *(np.asarray(ids, np.int64) for _, _, ids in branches)])
        places = np.concatenate([*(np.arange(len(one)) for one in cut), *(at + 1 + np.arange(len(ids)) for _, at, ids in branches)])
        layout = Branched.of([len(one) for one in cut], runs, device)
        recording = _Recording(layout)
        found = hidden_of(model, *(torch.from_numpy(one).to(device) for one in (ids, places)), recording if keep else layout)
        return cls(found[layout.tokens :], recording.kept, [len(one) for one in cut], runs)

    @property
    def ends(self) -> np.ndarray:
        """[B] index of each branch's last hidden state."""
        return np.cumsum([run.size for run in self.runs]) - 1


class Continuation:
    """What is written behind branches, some at a time. A layout for the model's own forward call."""

    def __init__(self, model: Any, passes: Sequence[Pass], room: int) -> None:
        """Branches in the order of `passes`, each with room for `room` further tokens."""
        self.model, self.device = model, passes[0].hidden.device
        runs = [run for one in passes for run in one.runs]
        firsts = np.cumsum([0, *(len(one.lengths) for one in passes)])
        self.segment = np.concatenate([[run.segment + first for run in one.runs] for one, first in zip(passes, firsts, strict=False)]).astype(np.int64)
        self.at = np.array([run.at for run in runs], np.int64)
        self.used = np.array([run.size for run in runs], np.int64)  # tokens of each branch that are held
        lengths = np.array([length for one in passes for length in one.lengths], np.int64)
        longest, most = int(lengths.max()), int(self.used.max()) + room
        starts, own, offset = [], [], 0
        for one in passes:
            size = sum(one.lengths)
            starts.append(offset + np.cumsum([0, *one.lengths])[:-1])
            sizes = np.array([run.size for run in one.runs])
            own.append(offset + size + np.cumsum(sizes) - sizes)
            offset += size + int(sizes.sum())
        trunk = np.minimum(np.concatenate(starts)[:, None] + np.arange(longest)[None, :], offset - 1)
        branch = np.minimum(np.concatenate(own)[:, None] + np.arange(most)[None, :], offset - 1)
        trunk_index, branch_index = (torch.from_numpy(one).to(self.device) for one in (trunk, branch))
        self.layers = []
        for layer in range(len(passes[0].kept)):
            both = [torch.cat([one.kept[layer][part] for one in passes], 1) for part in (0, 1)]
            laid = [one[:, trunk_index].transpose(0, 1) for one in both]  # [S, K, L, D]
            mine = [one[:, branch_index].transpose(0, 1).contiguous() for one in both]  # [B, K, O, D]
            self.layers.append((laid[0].transpose(2, 3).contiguous(), laid[1].contiguous(), *mine))

    def rewind(self, rows: np.ndarray, used: np.ndarray) -> None:
        """Forgets what `rows` hold behind their first `used` tokens."""
        self.used[rows] = used

    @torch.inference_mode()
    def read(self, rows: np.ndarray, tokens: np.ndarray) -> Tensor:
        """Reads tokens [b, m] behind what the branches `rows` [b] hold; logits [b, V] behind the last one."""
        count, more = tokens.shape
        places = self.used[rows][:, None] + np.arange(more)[None, :]
        self._layout(rows, places)
        positions = (self.at[rows][:, None] + 1 + places).ravel()
        self.used[rows] += more
        ids, where = (torch.from_numpy(np.ascontiguousarray(one)).to(self.device) for one in (tokens.ravel(), positions))
        hidden = hidden_of(self.model, ids, where, self)
        return head(self.model)(hidden.view(count, more, -1)[:, -1]).float()

    def _layout(self, rows: np.ndarray, places: np.ndarray) -> None:
        """Lays the rows out by their trunks: what each may see of the trunk and of itself."""
        segments, of_segment = np.unique(self.segment[rows], return_inverse=True)
        order = np.argsort(of_segment, kind="stable")
        counts = np.bincount(of_segment)
        slot = np.empty(len(rows), np.int64)
        slot[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        width, longest, most = int(counts.max()), int(self.at[rows].max()) + 1, int(places.max()) + 1
        grid = of_segment * width + slot
        filled = np.zeros(len(segments) * width, np.int64)
        filled[grid] = np.arange(len(rows))

        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

        self._layer, self._shape = 0, (len(segments), width, longest, most)
        self._rows, self._places, self._grid, self._filled, self._segments = (tensor(one) for one in (rows, places, grid, filled, segments))
        hidden = np.arange(longest)[None, :] > self.at[rows][:, None]
        self._bias = torch.zeros(hidden.shape, device=self.device).masked_fill_(tensor(hidden), float("-inf"))  # [b, longest]
        later = np.arange(most)[None, None, :] > places[:, :, None]
        self._own_bias = torch.zeros(later.shape, device=self.device).masked_fill_(tensor(later), float("-inf"))  # [b, m, most]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, H, b·m, D], key and value [1, K, b·m, D] → [1, b·m, H, D]; holds the new keys and values first."""
        trunk_k, trunk_v, own_k, own_v = self.layers[self._layer]
        self._layer += 1
        (b, m), (segments, width, longest, most) = self._places.shape, self._shape
        heads, kv_heads, size = query.shape[1], key.shape[1], query.shape[-1]
        own_k[self._rows[:, None], :, self._places] = key[0].view(kv_heads, b, m, size).permute(1, 2, 0, 3)
        own_v[self._rows[:, None], :, self._places] = value[0].view(kv_heads, b, m, size).permute(1, 2, 0, 3)
        # [b, K, G·m, D]: the query heads of a key head become further rows
        rows = (query[0] * scale).view(kv_heads, heads // kv_heads, b, m, size).permute(2, 0, 1, 3, 4).reshape(b, kv_heads, -1, size)
        each = rows.shape[2]
        by_trunk = rows[self._filled].view(segments, width, kv_heads, each, size).transpose(1, 2).reshape(segments, kv_heads, width * each, size)
        seen = torch.matmul(by_trunk, trunk_k[self._segments, ..., :longest])  # [S, K, R·G·m, L]
        seen = seen.view(segments, kv_heads, width, each, longest).transpose(1, 2).reshape(-1, kv_heads, each, longest)[self._grid]
        seen = seen + self._bias[:, None, None]
        mine = torch.matmul(rows, own_k[self._rows, :, :most].transpose(2, 3)).view(b, kv_heads, -1, m, most)
        mine = (mine + self._own_bias[:, None, None]).view(b, kv_heads, each, most)
        weights = torch.softmax(torch.cat([seen, mine], -1), -1)
        of_trunk = weights[..., :longest][self._filled].view(segments, width, kv_heads, each, longest).transpose(1, 2)
        mixed = torch.matmul(of_trunk.reshape(segments, kv_heads, width * each, longest), trunk_v[self._segments, :, :longest])
        mixed = mixed.view(segments, kv_heads, width, each, size).transpose(1, 2).reshape(-1, kv_heads, each, size)[self._grid]
        mixed = mixed + torch.matmul(weights[..., longest:], own_v[self._rows, :, :most])
        return mixed.view(b, heads, m, size).transpose(1, 2).reshape(1, b * m, heads, size).to(value.dtype)
