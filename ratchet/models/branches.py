"""Branches of an episode in the episode's own pass.

A branch is a run of tokens that continues a sequence, the trunk, from one of its points: it sees the trunk up to there and itself,
and nothing sees it. Its tokens lie behind those of all trunks in the packed pass, so linear layers see real tokens only, and the trunks'
attention is exactly that of a pass without branches. T histories that are prefixes of one episode then cost |episode| + Σ branches tokens
instead of Σ_t |h_t| (methods §4). What a branch says, and what is learned from it, is nobody's business here.

Legend: T tokens of all trunks · B tokens of all branches · H query heads · K key heads · D head size · N blocks of a bunch · q most
branch tokens of its blocks · n most keys of its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.errors import RatchetError
from ratchet.models import cpu_attention
from ratchet.models.attention import NAME, Packed, of_similar_length
from ratchet.models.cpu_attention import Block, Bunch, Bunched
from ratchet.models.parts import TOLERANCE, decoder, head
from ratchet.models.plain import PlainLlama

ROWS = 64  # branch tokens of a block, at least: fewer read fewer keys for nothing, more cost fewer calls (benchmarks/forecast.py)


@dataclass(frozen=True)
class Run:
    """Where a branch lies: it has `size` tokens and continues the sequence number `segment` behind its token `at`."""

    segment: int
    at: int
    size: int


@dataclass
class Branched:
    """The layout of a packed pass with branches: T tokens of trunks, then B of branches in the order of `runs`.

    `attend` takes and gives what `Packed.attend` does, so any transformers causal LM whose attention is Ratchet's can be called with it.
    """

    trunk: Packed
    lengths: list[int]
    runs: list[Run]

    @classmethod
    def of(cls, lengths: list[int], runs: Seq[Run], device: torch.device | str = "cpu") -> Branched:
        """Trunks of `lengths`, branches sorted by (segment, at); ValueError for others, and for a point that the trunk has not."""
        if any((a.segment, a.at) > (b.segment, b.at) for a, b in pairwise(runs)):
            raise ValueError("branches must be sorted by their segment and point")
        for run in runs:
            if not 0 <= run.at < lengths[run.segment] or run.size < 1:
                raise ValueError(f"{run} does not continue a sequence of {lengths[run.segment]} tokens")
        return cls(Packed.of(lengths, device), lengths, list(runs))

    @property
    def tokens(self) -> int:
        """T."""
        return sum(self.lengths)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, H, T+B, D], key and value [1, K, T+B, D] → [1, T+B, H, D]."""
        if query.device.type == "cpu":
            return cpu_attention.attend(query, key, value, self.trunk.rows, self.trunk.back, scale, self.bunched if self.runs else None)
        size = self.tokens
        trunk = self.trunk.attend(query[:, :, :size], key[:, :, :size], value[:, :, :size], scale)
        return torch.cat([trunk, _on_gpu(self, query, key, value, scale)], 1)

    def seen(self) -> Tensor:
        """[T+B, T+B] bool: which token (row) sees which (column). Quadratic, for tests and for explanation; `attend` never builds it."""
        segment, place, branch, at = self._places
        key = torch.arange(len(segment))
        return _sees(segment, place, branch, at)(0, 0, key[:, None], key[None, :])

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of each of T+B tokens: its segment, its position in it, its branch (−1: the trunk) and the last trunk position that it sees."""
        runs, lengths = self.runs, np.asarray(self.lengths)
        sizes = np.asarray([run.size for run in runs], np.int64)
        points = np.asarray([run.at for run in runs], np.int64)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        own = np.concatenate([np.arange(n) for n in lengths])
        segment = np.concatenate([np.repeat(np.arange(len(lengths)), lengths), np.repeat([run.segment for run in runs], sizes).astype(np.int64)])
        place = np.concatenate([own, np.repeat(points, sizes) + 1 + within])
        branch = np.concatenate([np.full(len(own), -1), np.repeat(np.arange(len(runs)), sizes)])
        at = np.concatenate([own, np.repeat(points, sizes)])
        device = self.trunk.back.device
        return tuple(torch.from_numpy(values).to(device) for values in (segment, place, branch, at))  # type: ignore[return-value]

    @cached_property
    def bunched(self) -> Bunched:
        """How a CPU lays the branches out; a GPU needs none of it."""
        return _bunched(_blocks(self.lengths, self.runs), self.tokens, self.trunk.back.device)

    @cached_property
    def _block_mask(self) -> Any:
        """FlexAttention's form of `seen`, the rows of the branches alone; made once a pass and used by all layers."""
        from torch.nn.attention.flex_attention import create_block_mask

        total = self.tokens + sum(run.size for run in self.runs)
        sees, first = _sees(*self._places), self.tokens
        return create_block_mask(
            lambda b, h, q, k: sees(b, h, q + first, k), None, None, total - first, total, device=self.trunk.back.device
        )


def attend_eager(layout: Branched, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """What `layout.attend` computes, by one dense mask over all tokens and a softmax written out: the reference of the tests."""
    groups = query.shape[1] // key.shape[1]
    keys, values = (x[0].repeat_interleave(groups, dim=0) for x in (key, value))
    scores = (query[0] @ keys.transpose(1, 2)) * scale
    weights = scores.masked_fill(~layout.seen(), float("-inf")).softmax(-1)
    return (weights @ values).transpose(0, 1)[None]


@torch.no_grad()
def check_takes_branches(model: Any, where: str, way_out: str) -> None:
    """Raises RatchetError, naming `where` and the setting `way_out`, unless the model computes a branch as it computes the same tokens
    in a sequence of their own."""
    if isinstance(model, PlainLlama):
        return
    config = model.config.get_text_config()
    named = {
        "a sliding window": getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True),
        "capped attention scores": getattr(config, "attn_logit_softcapping", None) is not None,
        "a state instead of keys": getattr(model, "_is_stateful", False),
    }
    refused = f"{where}: {type(model).__name__} cannot take branches in its pass"
    if why := [name for name, found in named.items() if found]:
        raise RatchetError(f"{refused} (it has {' and '.join(why)}); set {way_out}")
    try:
        gap = _gap(model, (torch.arange(1, 12) * 7919) % config.vocab_size)
    except (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError, IndexError) as error:
        raise RatchetError(f"{refused} ({str(error).splitlines()[0]}); set {way_out}") from error
    if not gap <= (TOLERANCE if next(model.parameters()).dtype == torch.float32 else 0.2):
        raise RatchetError(f"{refused} (its log-probs are then apart by {gap:.2g}); set {way_out}")


def _gap(model: Any, ids: Tensor) -> float:
    """Largest difference of a log-prob between two branches of one trunk and the same tokens as sequences."""
    trunk, runs = 6, [Run(0, 2, 3), Run(0, 5, 2)]
    layout, start, parts, places = Branched.of([trunk], runs), trunk, [], [torch.arange(trunk)]
    for run in runs:
        parts.append(torch.cat([ids[: run.at + 1], ids[start : start + run.size]]))
        places.append(run.at + 1 + torch.arange(run.size))
        start += run.size
    try:
        model.set_attn_implementation("eager")
        expected = [model(input_ids=part[None], use_cache=False).logits[0, -run.size :] for part, run in zip(parts, runs, strict=True)]
    finally:
        model.set_attn_implementation(NAME)
    out = decoder(model)(input_ids=ids[None], position_ids=torch.cat(places)[None], use_cache=False, layout=layout)
    found = head(model)(out.last_hidden_state[0, trunk:])
    return float((torch.log_softmax(found.float(), -1) - torch.log_softmax(torch.cat(expected).float(), -1)).abs().max())


def _sees(segment: Tensor, place: Tensor, branch: Tensor, at: Tensor) -> Any:
    """FlexAttention's mask function: a key of the same segment in the trunk up to `at`, or in the same branch up to the query itself."""

    def sees(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        trunk = (branch[key] < 0) & (place[key] <= at[query])
        own = (branch[key] >= 0) & (branch[key] == branch[query]) & (place[key] <= place[query])
        return (segment[query] == segment[key]) & (trunk | own)

    return sees


def _blocks(lengths: list[int], runs: Seq[Run]) -> list[tuple[Block, list[Run]]]:
    """Neighbouring branches of a trunk until they have ROWS tokens."""
    starts = np.cumsum([0, *lengths])
    out: list[tuple[Block, list[Run]]] = []
    start = 0
    gathered: list[Run] = []
    for number, run in enumerate(runs):
        gathered.append(run)
        size = sum(one.size for one in gathered)
        is_last = number + 1 == len(runs) or runs[number + 1].segment != run.segment
        if size >= ROWS or is_last:
            first = int(starts[run.segment])
            out.append((Block(first, first + run.at + 1, start, start + size), gathered))
            start, gathered = start + size, []
    return out


def _bunched(blocks: Seq[tuple[Block, list[Run]]], tokens: int, device: torch.device | str) -> Bunched:
    """Blocks of similarly many keys together, and where each branch token lies among them. `tokens` is T."""
    out, laid = list[Bunch](), 0
    back = np.empty(sum(block.stop - block.start for block, _ in blocks), np.int64)
    for places in of_similar_length(np.array([block.keys for block, _ in blocks], np.int64)):
        alike = [blocks[place] for place in places]
        width = max(block.stop - block.start for block, _ in alike)
        queries, keys = np.zeros((len(alike), width), np.int64), np.zeros((len(alike), alike[0][0].keys), np.int64)
        mask = np.zeros((len(alike), 1, width, keys.shape[1]), np.float32)
        for number, (block, runs) in enumerate(alike):
            size = block.stop - block.start
            queries[number, :size] = tokens + np.arange(block.start, block.stop)
            keys[number, : block.keys] = np.concatenate([np.arange(block.first, block.last), queries[number, :size]])
            mask[number, 0, :size, block.keys :] = -np.inf
            common = runs[0].at + 1  # all of its queries see them
            mask[number, 0, :size, common : block.keys] = _bias(runs)
            back[block.start : block.stop] = laid + number * width + np.arange(size)
        laid += queries.size
        out.append(Bunch([block for block, _ in alike], *(torch.from_numpy(one).to(device) for one in (queries, keys, mask))))
    return out, torch.from_numpy(back).to(device)


def _bias(runs: Seq[Run]) -> np.ndarray:
    """[q, n − common] of one block: the trunk's tokens from the first point to the last, then the branches' own."""
    sizes = np.asarray([run.size for run in runs])
    points = np.repeat([run.at for run in runs], sizes)
    of, place = np.repeat(np.arange(len(runs)), sizes), np.arange(sizes.sum())
    trunk = np.arange(runs[0].at + 1, runs[-1].at + 1)[None, :] <= points[:, None]
    own = (of[:, None] == of[None, :]) & (place[None, :] <= place[:, None])
    return np.where(np.concatenate([trunk, own], 1), np.float32(0), np.float32("-inf"))


def _on_gpu(layout: Branched, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The branches' rows, [1, B, H, D], by FlexAttention, which skips the blocks of keys that no row sees."""
    rows = query[:, :, layout.tokens :]
    found = _flex()(rows, key, value, block_mask=layout._block_mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1])
    return found.transpose(1, 2)


_COMPILED: list[Any] = []


def _flex() -> Any:
    if not _COMPILED:
        from torch.nn.attention.flex_attention import flex_attention

        _COMPILED.append(torch.compile(flex_attention, dynamic=True))
    return _COMPILED[0]
