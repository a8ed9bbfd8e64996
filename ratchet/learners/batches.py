"""Episodes as sequences of tokens, packed by a token budget.

Legend: n tokens of one sequence · T tokens of a micro-batch · M of them carry a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence as Seq
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ratchet.models.attention import Packed

PROMPT, REPLY, OBSERVATION = 0, 1, 2
"""Roles of tokens. REPLY: what the policy wrote, end-of-turn included. OBSERVATION: what it read after its first reply,
PROMPT: what it read before (instruction and first observation)."""


@dataclass
class Sequence:
    """One episode as tokens, with one advantage a step and log-probs under the policy that played it."""

    episode_id: str
    ids: np.ndarray  # int64 [n]
    role: np.ndarray  # int8 [n]
    step: np.ndarray  # int32 [n]
    old_logprobs: np.ndarray  # float32 [n]; 0 where no policy sampled
    advantages: np.ndarray  # float32, one a step
    reference_logprobs: np.ndarray | None = None  # float32 [n], for the KL term
    silent: bool = False  # its group says nothing: it counts in the policy term and its KL, which take exactly no gradient from it
    solved: bool = False
    weight: float = 1.0  # in the numerators of terms that learn from successes

    @property
    def n_reply(self) -> int:
        return int((self.role == REPLY).sum())

    @property
    def n_observation(self) -> int:
        return int((self.role == OBSERVATION).sum())


@dataclass
class Micro:
    """A packed micro-batch and, for each of its M loss tokens, what the terms need."""

    ids: Tensor  # int64 [1, T]
    positions: Tensor  # int64 [1, T]
    layout: Packed
    before: Tensor  # int64 [M] packed index of the token before: its hidden state predicts the loss token
    target: Tensor  # int64 [M] the loss token's id
    role: Tensor  # int8 [M]
    advantage: Tensor  # float32 [M]
    old_logprob: Tensor  # float32 [M]
    reference_logprob: Tensor  # float32 [M]
    step: Tensor  # int64 [M] step index, unique within the micro-batch
    episode_tokens: Tensor  # float32 [M] reply tokens of the token's episode
    silent: Tensor  # bool [M] of the token's episode, as the next two
    solved: Tensor  # bool [M]
    weight: Tensor  # float32 [M]


def sequences_of(steps: pa.Table, advantages: dict[str, np.ndarray] | None = None, episode_ids: Iterable[str] | None = None) -> list[Sequence]:
    """Sequences of the episodes in a steps table (sorted by id and t), in the order of `episode_ids` (default: the table's).

    `advantages` maps an episode to one value a step; without it they are 0.
    """
    ids = steps.column("episode_id").to_pylist()
    prompt, reply = _lists(steps, "prompt_ids"), _lists(steps, "reply_ids")
    logprobs = _lists(steps, "logprobs")
    first: dict[str, int] = {}
    count: dict[str, int] = {}
    for row, one in enumerate(ids):
        first.setdefault(one, row)
        count[one] = count.get(one, 0) + 1
    wanted = list(first) if episode_ids is None else [one for one in episode_ids if one in first]
    return [
        _sequence(one, range(first[one], first[one] + count[one]), prompt, reply, logprobs, None if advantages is None else advantages[one])
        for one in wanted
    ]


def _lists(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(flat values, offsets) of a list column."""
    array = table.column(name).combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    offsets = array.offsets.to_numpy()
    return array.values.to_numpy(zero_copy_only=False), offsets


def _sequence(
    episode_id: str,
    rows: range,
    prompt: tuple[np.ndarray, np.ndarray],
    reply: tuple[np.ndarray, np.ndarray],
    logprobs: tuple[np.ndarray, np.ndarray],
    advantages: np.ndarray | None,
) -> Sequence:
    ids: list[np.ndarray] = []
    role: list[np.ndarray] = []
    step: list[np.ndarray] = []
    old: list[np.ndarray] = []
    for t, row in enumerate(rows):
        read = prompt[0][prompt[1][row] : prompt[1][row + 1]]
        wrote = reply[0][reply[1][row] : reply[1][row + 1]]
        sampled = logprobs[0][logprobs[1][row] : logprobs[1][row + 1]]
        ids += [read, wrote]
        role += [np.full(len(read), PROMPT if t == 0 else OBSERVATION, np.int8), np.full(len(wrote), REPLY, np.int8)]
        step += [np.full(len(read) + len(wrote), t, np.int32)]
        old += [np.zeros(len(read), np.float32), sampled if len(sampled) else np.zeros(len(wrote), np.float32)]
    values = np.zeros(len(rows), np.float32) if advantages is None else np.asarray(advantages, np.float32)
    return Sequence(
        episode_id,
        np.concatenate(ids).astype(np.int64),
        np.concatenate(role),
        np.concatenate(step),
        np.concatenate(old).astype(np.float32),
        values,
    )


def silence(one: Sequence, steps: Iterable[int]) -> None:
    """Takes the loss off the replies of these steps: they become what was merely read."""
    one.role[np.isin(one.step, list(steps)) & (one.role == REPLY)] = PROMPT


def pack(sequences: Seq[Sequence], budget: int) -> Iterator[list[Sequence]]:
    """Micro-batches of at most `budget` tokens (one longer sequence goes alone), of similar lengths."""
    pending: list[Sequence] = []
    size = 0
    for one in sorted(sequences, key=lambda one: (len(one.ids), one.episode_id)):
        if pending and size + len(one.ids) > budget:
            yield pending
            pending, size = [], 0
        pending.append(one)
        size += len(one.ids)
    if pending:
        yield pending


def micro_batch(sequences: Seq[Sequence], roles: frozenset[int], device: torch.device | str = "cpu") -> Micro:
    """Packs sequences; loss tokens are those of `roles`, never a sequence's first token."""
    lengths = [len(one.ids) for one in sequences]
    ids = np.concatenate([one.ids for one in sequences])
    role = np.concatenate([one.role for one in sequences])
    positions = np.concatenate([np.arange(n) for n in lengths])
    chosen = np.flatnonzero(np.isin(role, list(roles)) & (positions > 0))
    offsets = np.cumsum([0, *[len(one.advantages) for one in sequences]])
    step = np.concatenate([one.step + start for one, start in zip(sequences, offsets, strict=False)])
    advantage = np.concatenate([one.advantages for one in sequences])[step]
    old = np.concatenate([one.old_logprobs for one in sequences])
    reference = np.concatenate(
        [np.zeros(len(one.ids), np.float32) if one.reference_logprobs is None else one.reference_logprobs for one in sequences]
    )
    owner = np.repeat(np.arange(len(sequences)), lengths)
    episode_tokens = np.array([max(one.n_reply, 1) for one in sequences], np.float32)[owner]

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    return Micro(
        ids=tensor(ids)[None],
        positions=tensor(positions)[None],
        layout=Packed.of(lengths, device),
        before=tensor(chosen - 1),
        target=tensor(ids[chosen]),
        role=tensor(role[chosen]),
        advantage=tensor(advantage[chosen].astype(np.float32)),
        old_logprob=tensor(old[chosen]),
        reference_logprob=tensor(reference[chosen]),
        step=tensor(step[chosen].astype(np.int64)),
        episode_tokens=tensor(episode_tokens[chosen]),
        silent=tensor(np.array([one.silent for one in sequences])[owner[chosen]]),
        solved=tensor(np.array([one.solved for one in sequences])[owner[chosen]]),
        weight=tensor(np.array([one.weight for one in sequences], np.float32)[owner[chosen]]),
    )
