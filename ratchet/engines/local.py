"""The engine in this process: a transformers model, its keys and values kept across turns, keyed noise.

Legend: b rows of this call · n new tokens · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.clock import CLOCK
from ratchet.engines.base import Generated
from ratchet.engines.fused import FusedDecoder
from ratchet.models.attention import SMALLEST, SlotCache
from ratchet.models.fused import fusable
from ratchet.models.parts import decoder, head
from ratchet.rollout.noise import uniforms

READ_AT_ONCE = 256  # tokens of a row in one pass
PASS = 4096  # tokens of all rows in one pass: what lies between two layers stays in the processor's cache
COMPACT_BELOW = 0.5  # decoding goes on with the unfinished rows alone once they are fewer than this share


class LocalEngine:
    """Implements `Engine`. Results depend on which rows were called together since `reset`, never on time: in which order rows lie in the
    cache, and how long it has grown, decides how a product's sums are ordered."""

    def __init__(self, model: Any, *, slots: int, length: int, end: int | Collection[int], pad: int) -> None:
        """`length` bounds an episode's tokens, `end` (one id or several) stops a reply, `pad` fills up."""
        self.model = model.eval()
        self.device = next(model.parameters()).device
        self.slots = max(slots, SMALLEST)
        self.length, self.pad = length, pad
        self.ends = np.array([end] if isinstance(end, int) else sorted(end))
        self.fused = FusedDecoder(model, length + 1) if fusable(model) else None
        self.reset()

    def reset(self) -> None:
        self.cache = SlotCache(self.slots, self.length + 1)  # the last place takes what padded rows write
        self.used = np.zeros(self.slots, dtype=np.int64)  # tokens of each slot that the cache holds
        self.held: list[int | None] = [None] * self.slots  # the last generated token, which is read with the next turn

    def twin(self) -> LocalEngine:
        return LocalEngine(self.model, slots=self.slots, length=self.length, end=self.ends.tolist(), pad=self.pad)

    def clear(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.used[slot] = 0
            self.held[slot] = None

    @torch.inference_mode()
    def reply(
        self,
        slots: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        keys: np.ndarray,
        limits: Sequence[int],
        temperature: float,
    ) -> list[Generated]:
        fresh = [[*([held] if (held := self.held[slot]) is not None else []), *ids] for slot, ids in zip(slots, new_ids, strict=True)]
        for slot, ids, limit in zip(slots, fresh, limits, strict=True):
            if self.used[slot] + len(ids) + limit > self.length:
                raise ValueError(f"slot {slot}: {self.used[slot]} + {len(ids)} + {limit} tokens exceed the cache of {self.length}")
        if self.fused is not None:
            self.fused.follow()
        where = np.asarray(slots)
        with CLOCK.phase("reading"):
            logits = self._read(where, fresh)
        with CLOCK.phase("decoding"):
            return self._decode(where, logits, keys.astype(np.uint64), np.asarray(limits), temperature)

    def _read(self, slots: np.ndarray, fresh: Sequence[Sequence[int]]) -> Tensor:
        """Reads the new tokens; logits [b, V] behind each row's last."""
        sizes = np.array([len(ids) for ids in fresh])
        CLOCK.counts["tokens_read"] += int(sizes.sum())
        last: Tensor | None = None
        for start in range(0, int(sizes.max()), READ_AT_ONCE):
            part = np.clip(sizes - start, 0, READ_AT_ONCE)
            for chosen in _passes(np.flatnonzero(part), part):
                tokens = np.concatenate([fresh[row][start : start + READ_AT_ONCE] for row in chosen])
                hidden = self._forward(slots[chosen], part[chosen], tokens)
                if last is None:
                    last = hidden.new_empty((len(slots), hidden.shape[1]))
                ends = sizes[chosen] <= start + READ_AT_ONCE
                last[torch.from_numpy(chosen[ends])] = hidden[torch.from_numpy(np.cumsum(part[chosen])[ends] - 1)]
                self.used[slots[chosen]] += part[chosen]
        assert last is not None
        return self._logits(last)

    def _forward(self, slots: np.ndarray, sizes: np.ndarray, tokens: np.ndarray) -> Tensor:
        """Hidden states [T, width] of packed tokens, `sizes[i]` of them placed behind what `slots[i]` holds."""
        positions = self.cache.place(slots, self.used[slots], sizes, self.device)
        ids = np.full(positions.shape[1], self.pad, dtype=np.int64)
        ids[: len(tokens)] = tokens
        new = torch.from_numpy(ids).to(self.device)
        if self.fused is not None:
            return self.fused(new, positions[0], self.cache)[: len(tokens)]
        out = decoder(self.model)(input_ids=new[None], position_ids=positions, use_cache=False, layout=self.cache)
        return out.last_hidden_state[0, : len(tokens)]

    def _logits(self, hidden: Tensor) -> Tensor:
        rows = len(hidden)
        if rows < SMALLEST:
            hidden = torch.cat([hidden, hidden.new_zeros((SMALLEST - rows, hidden.shape[1]))])
        return (head(self.model) if self.fused is None else self.fused.logits)(hidden)[:rows].float()

    def _decode(self, slots: np.ndarray, logits: Tensor, keys: np.ndarray, limits: np.ndarray, temperature: float) -> list[Generated]:
        count = len(slots)
        longest = int(limits.max())
        ids = np.zeros((count, longest), dtype=np.int64)
        logprobs = np.zeros((count, longest), dtype=np.float32)
        entropy = np.zeros((count, longest), dtype=np.float32)
        lengths = np.zeros(count, dtype=np.int64)
        running = np.ones(count, bool)  # rows that still write
        batch = np.arange(count)  # rows that the model computes, a superset of them until it is compacted
        noise = uniforms(keys[:, None], self.used[slots][:, None] + np.arange(longest))  # rows that still write are equally far
        self.cache.bring_forward(slots, self.used)
        for place in range(longest):
            sampled = sample(logits, noise[batch, place], temperature)
            token, logprob, spread = (one.cpu().numpy() for one in sampled)
            live = running[batch]
            at, written = batch[live], token[live]
            ids[at, lengths[at]] = written
            logprobs[at, lengths[at]] = logprob[live]
            entropy[at, lengths[at]] = spread[live]
            lengths[at] += 1
            stops = (written[:, None] == self.ends).any(1) | (lengths[at] >= limits[at])
            for row, last in zip(at[stops], written[stops].tolist(), strict=True):
                self.held[slots[row]] = last
            running[at[stops]] = False
            left = int(running.sum())
            if not left:
                break
            if left < COMPACT_BELOW * len(batch) and len(batch) > SMALLEST:
                batch = np.flatnonzero(running)
                self.cache.bring_forward(slots[batch], self.used)
            feed = np.where(running[batch], ids[batch, lengths[batch] - 1], self.pad)
            logits = self._logits(self._forward(slots[batch], np.ones(len(batch), np.int64), feed))
            self.used[slots[running]] += 1
        CLOCK.counts["tokens_generated"] += int(lengths.sum())
        return [
            Generated(ids[row, :n].tolist(), logprobs[row, :n].tolist(), entropy[row, :n].tolist()) for row, n in enumerate(lengths)
        ]


def _passes(rows: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """The rows in their order, in runs of at most PASS tokens (one longer row goes alone)."""
    first, total = 0, 0
    for at, row in enumerate(rows):
        if total and total + sizes[row] > PASS:
            yield rows[first:at]
            first, total = at, 0
        total += sizes[row]
    yield rows[first:]


def sample(logits: Tensor, noise: np.ndarray, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(token, log-prob, entropy), each [b], of logits [b, V] by inverting the distribution at `noise` [b], uniform in [0, 1).

    Log-prob and entropy (nats) are of the distribution that was sampled: softmax(logits / temperature). Greedy
    (temperature 0) takes the first largest logit and reports them at temperature 1.
    """
    scaled = logits if temperature == 0 else logits / temperature
    logp = torch.log_softmax(scaled, -1)
    probability = logp.exp()
    if temperature == 0:
        token = logits.argmax(-1)
    else:
        mass = probability.double().cumsum(-1)
        at = torch.from_numpy(noise).to(logits.device)[:, None] * mass[:, -1:]
        token = torch.searchsorted(mass, at, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
    spread = -(probability * logp.nan_to_num(neginf=0.0)).sum(-1)
    return token, logp.gather(1, token[:, None]).squeeze(1), spread
