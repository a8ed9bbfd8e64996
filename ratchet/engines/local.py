"""The engine in this process: a transformers model, its keys and values kept across turns, keyed noise.

Legend: b rows of this call · n new tokens · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.engines.base import Generated
from ratchet.models.attention import SlotCache
from ratchet.models.parts import decoder, head
from ratchet.rollout.noise import uniforms

SMALLEST_BATCH = 8  # below it fp32 results change bits with the number of rows, so smaller calls are filled up
READ_AT_ONCE = 256  # tokens of a row in one pass: scores take rows × heads × these × keys, several times over
COMPACT_BELOW = 0.5  # decoding goes on with the unfinished rows alone once they are fewer than this share


class LocalEngine:
    """Implements `Engine`. Results depend on which rows are called together, never on time."""

    def __init__(self, model: Any, *, slots: int, length: int, end: int | Collection[int], pad: int) -> None:
        """`length` bounds an episode's tokens, `end` (one id or several) stops a reply, `pad` fills up."""
        self.model = model.eval()
        self.device = next(model.parameters()).device
        self.slots = max(slots, SMALLEST_BATCH)
        self.length, self.pad = length, pad
        self.ends = np.array([end] if isinstance(end, int) else sorted(end))
        self.cache = SlotCache(self.slots, length + 1)  # the last place takes what padded rows write
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
        logits = self._read(slots, fresh)
        return self._decode(np.asarray(slots), logits, keys.astype(np.uint64), np.asarray(limits), temperature)

    def _read(self, slots: Sequence[int], fresh: Sequence[Sequence[int]]) -> Tensor:
        """Reads the new tokens, long and short rows apart so that little is padded; logits [b, V] behind each row's last."""
        out: Tensor | None = None
        sizes = np.array([len(ids) for ids in fresh])
        groups = np.ceil(np.log2(np.maximum(sizes, 8))).astype(int)
        for group in np.unique(groups):
            chosen = np.flatnonzero(groups == group)
            width = int(sizes[chosen].max())
            rows = self._filled(np.asarray(slots)[chosen])
            tokens = np.full((len(rows), width), self.pad, dtype=np.int64)
            for line, index in enumerate(chosen):
                tokens[line, : sizes[index]] = fresh[index]
            logits = self._logits(self._read_group(rows, len(chosen), tokens, sizes[chosen]))
            if out is None:
                out = logits.new_empty((len(slots), logits.shape[1]))
            out[torch.from_numpy(chosen)] = logits
        assert out is not None
        return out

    def _read_group(self, rows: np.ndarray, real: int, tokens: np.ndarray, sizes: np.ndarray) -> Tensor:
        """Hidden states [real, width] behind each row's last token; tokens [b, n] are read in pieces of READ_AT_ONCE."""
        last: Tensor | None = None
        for start in range(0, tokens.shape[1], READ_AT_ONCE):
            piece = tokens[:, start : start + READ_AT_ONCE]
            hidden = self._forward(rows, real, piece)
            if last is None:
                last = hidden.new_empty((real, hidden.shape[2]))
            ends = np.flatnonzero((sizes > start) & (sizes <= start + READ_AT_ONCE))
            last[torch.from_numpy(ends)] = hidden[torch.from_numpy(ends), torch.from_numpy(sizes[ends] - 1 - start)]
            self.used[rows[:real]] += np.clip(sizes - start, 0, piece.shape[1])
        assert last is not None
        return last

    def _filled(self, rows: np.ndarray) -> np.ndarray:
        """At least SMALLEST_BATCH different slots, the given ones first; the others only pad and keep what they hold."""
        if len(rows) >= SMALLEST_BATCH:
            return rows
        others = np.setdiff1d(np.arange(self.slots), rows)[: SMALLEST_BATCH - len(rows)]
        return np.concatenate([rows, others])

    def _forward(self, rows: np.ndarray, real: int, tokens: np.ndarray) -> Tensor:
        """Hidden states [b, n, width] of tokens [b, n] placed behind what the rows' slots hold; rows from `real` on only pad."""
        everyone = len(rows) == self.slots and bool((rows == np.arange(self.slots)).all())
        place = None if everyone else torch.from_numpy(rows).to(self.device)
        self.cache.place(place, torch.from_numpy(self.used[rows]).to(self.device), tokens.shape[1], real)
        ids = torch.from_numpy(tokens).to(self.device)
        out = decoder(self.model)(input_ids=ids, position_ids=self.cache.positions, use_cache=False, layout=self.cache)
        return out.last_hidden_state

    def _logits(self, hidden: Tensor) -> Tensor:
        rows = len(hidden)
        if rows < SMALLEST_BATCH:
            hidden = torch.cat([hidden, hidden.new_zeros((SMALLEST_BATCH - rows, hidden.shape[1]))])
        return head(self.model)(hidden)[:rows].float()

    def _decode(self, slots: np.ndarray, logits: Tensor, keys: np.ndarray, limits: np.ndarray, temperature: float) -> list[Generated]:
        count = len(slots)
        longest = int(limits.max())
        ids = np.zeros((count, longest), dtype=np.int64)
        logprobs = np.zeros((count, longest), dtype=np.float32)
        entropy = np.zeros((count, longest), dtype=np.float32)
        lengths = np.zeros(count, dtype=np.int64)
        running = np.arange(count)  # rows that still write
        batch = np.arange(count)  # rows that the model computes, a superset of `running` until it is compacted
        for _ in range(longest):
            token, logprob, spread = sample(logits, keys[batch], self.used[slots[batch]], temperature)
            token, logprob, spread = token.cpu().numpy(), logprob.cpu().numpy(), spread.cpu().numpy()
            live = np.isin(batch, running, assume_unique=True)
            at = batch[live]
            ids[at, lengths[at]] = token[live]
            logprobs[at, lengths[at]] = logprob[live]
            entropy[at, lengths[at]] = spread[live]
            lengths[at] += 1
            stops = np.isin(token[live], self.ends) | (lengths[at] >= limits[at])
            for row in at[stops]:
                self.held[slots[row]] = int(ids[row, lengths[row] - 1])
            running = at[~stops]
            if not len(running):
                break
            if len(running) < COMPACT_BELOW * len(batch) and len(batch) > SMALLEST_BATCH:
                batch = running
            rows = self._filled(slots[batch])
            feed = np.full((len(rows), 1), self.pad, dtype=np.int64)
            inside = np.isin(batch, running, assume_unique=True)
            feed[: len(batch), 0][inside] = ids[running, lengths[running] - 1]
            hidden = self._forward(rows, len(batch), feed)
            logits = self._logits(hidden[: len(batch), 0])
            self.used[slots[running]] += 1
        return [
            Generated(ids[row, :n].tolist(), logprobs[row, :n].tolist(), entropy[row, :n].tolist()) for row, n in enumerate(lengths)
        ]


def sample(logits: Tensor, keys: np.ndarray, positions: np.ndarray, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(token, log-prob, entropy), each [b], of logits [b, V] by inverting the distribution at a keyed uniform.

    Log-prob and entropy (nats) are of the distribution that was sampled: softmax(logits / temperature). Greedy
    (temperature 0) takes the first largest logit and reports them at temperature 1.
    """
    scaled = logits if temperature == 0 else logits / temperature
    logp = torch.log_softmax(scaled, -1)
    probability = logp.exp()
    if temperature == 0:
        token = logits.argmax(-1)
    else:
        noise = torch.from_numpy(uniforms(keys, positions)).to(logits.device)[:, None]
        mass = probability.double().cumsum(-1)
        token = torch.searchsorted(mass, noise * mass[:, -1:], right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
    spread = -(probability * logp.nan_to_num(neginf=0.0)).sum(-1)
    return token, logp.gather(1, token[:, None]).squeeze(1), spread
