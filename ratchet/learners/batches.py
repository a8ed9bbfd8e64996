"""Episodes as sequences of tokens, packed by a token budget.

Legend: n tokens of one sequence · m of one branch · T tokens of a micro-batch · M of them carry a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ratchet.episodes.schema import rows_of
from ratchet.models.attention import Packed
from ratchet.models.branches import Branched, Run

PROMPT, REPLY, OBSERVATION, FORECAST = ROLES = 0, 1, 2, 3
"""Roles of tokens. REPLY: what the policy wrote, end-of-turn included. OBSERVATION: what it read after its first reply,
PROMPT: what it read before (instruction and first observation), and all else that carries no loss. FORECAST: targets of the
forecast term, in branches."""


@dataclass(frozen=True)
class Branch:
    """Tokens that continue a sequence from one of its points in the sequence's own pass, unseen by all others (models/branches.py)."""

    at: int  # the last token of the sequence that they see
    ids: np.ndarray  # int64 [m]
    role: np.ndarray  # int8 [m]
    weight: float = 1.0  # of its tokens, in numerators


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
    branches: tuple[Branch, ...] = ()  # sorted by `at`
    group_share: float = 0.0  # one over the number of its group's episodes: over a whole iteration they sum to its groups

    @property
    def size(self) -> int:
        """Tokens that a pass reads for it; the last token of a branch is predicted and never read."""
        return len(self.ids) + sum(len(branch.ids) - 1 for branch in self.branches)

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
    layout: Packed | Branched
    before: Tensor  # int64 [M] packed index of the token before: its hidden state predicts the loss token
    target: Tensor  # int64 [M] the loss token's id
    role: Tensor  # int8 [M]
    advantage: Tensor  # float32 [M]
    old_logprob: Tensor  # float32 [M]
    reference_logprob: Tensor  # float32 [M]
    step: Tensor  # int64 [M] step index, unique within the micro-batch; 0 in branches
    episode_tokens: Tensor  # float32 [M] reply tokens of the token's episode
    silent: Tensor  # bool [M] of the token's episode, as the next two
    solved: Tensor  # bool [M]
    weight: Tensor  # float32 [M]; in a branch its own


def sequences_of(steps: pa.Table, advantages: dict[str, np.ndarray] | None = None, episode_ids: Iterable[str] | None = None) -> list[Sequence]:
    """Sequences of the episodes in a steps table (sorted by id and t), in the order of `episode_ids` (default: the table's).

    `advantages` maps an episode to one value a step; without it they are 0.
    """
    ids = steps.column("episode_id").to_pylist()
    prompt, reply = lists(steps, "prompt_ids"), lists(steps, "reply_ids")
    logprobs = lists(steps, "logprobs")
    places = rows_of(ids)
    wanted = list(places) if episode_ids is None else [one for one in episode_ids if one in places]
    return [_sequence(one, places[one], prompt, reply, logprobs, None if advantages is None else advantages[one]) for one in wanted]


def lists(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
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


def masked(one: Sequence, roles: frozenset[int]) -> Sequence:
    """The sequence with a loss on tokens of `roles` alone. Where that leaves none on the trunk, it ends with its last branching point."""
    kept = _carries(one.role, roles)
    role = np.where(kept, one.role, PROMPT).astype(np.int8)
    branches = tuple(branch for branch in one.branches if _carries(branch.role, roles).any())
    end = len(one.ids) if kept.any() or not branches else branches[-1].at + 1
    reference = None if one.reference_logprobs is None else one.reference_logprobs[:end]
    return replace(
        one, ids=one.ids[:end], role=role[:end], step=one.step[:end], old_logprobs=one.old_logprobs[:end], reference_logprobs=reference,
        branches=branches,
    )  # fmt: skip


def _carries(role: np.ndarray, roles: frozenset[int]) -> np.ndarray:
    """Which tokens have one of `roles`; NumPy's own `isin` takes a hundred times as long on a branch."""
    table = np.zeros(len(ROLES), bool)
    table[list(roles)] = True
    return table[role]


def separated(one: Sequence) -> list[Sequence]:
    """The sequence without its branches (where anything on it carries a loss), and each branch with its whole history as a sequence of
    its own: the same gradients at |episode| + Σ (history + branch) tokens."""
    out = [replace(one, branches=())] if not one.branches or (one.role != PROMPT).any() else []
    for number, branch in enumerate(one.branches):
        history, size = branch.at + 1, len(branch.ids)
        out.append(
            Sequence(
                f"{one.episode_id} {number}",
                np.concatenate([one.ids[:history], branch.ids]),
                np.concatenate([np.full(history, PROMPT, np.int8), branch.role]),
                np.zeros(history + size, np.int32),
                np.zeros(history + size, np.float32),
                np.zeros(1, np.float32),
                silent=one.silent,
                solved=one.solved,
                weight=branch.weight,
            )
        )
    return out


class Sized(Protocol):
    """What is packed by its tokens and named by its episode."""

    @property
    def episode_id(self) -> str: ...

    @property
    def size(self) -> int: ...


Item = TypeVar("Item")
Whole = TypeVar("Whole", bound=Sized)


def pack(whole: Seq[Whole], budget: int) -> Iterator[list[Whole]]:
    """Micro-batches of at most `budget` tokens, branches included (one longer sequence goes alone), of similar lengths."""
    yield from filled(sorted(whole, key=lambda one: (one.size, one.episode_id)), budget, _size)


def shuffled(whole: Seq[Whole], budget: int, seed: int) -> list[list[Whole]]:
    """All of them once, in batches of about `budget` tokens and in an order drawn by `seed`."""
    return list(filled([whole[index] for index in np.random.default_rng(seed).permutation(len(whole))], budget, _size))


def _size(one: Sized) -> int:
    return one.size


def filled(ordered: Iterable[Item], budget: int, size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Batches of at most `budget` tokens in the order that is given; what is longer by itself goes alone. `size`: tokens of one."""
    pending: list[Item] = []
    total = 0
    for one in ordered:
        if pending and total + size(one) > budget:
            yield pending
            pending, total = [], 0
        pending.append(one)
        total += size(one)
    if pending:
        yield pending


def micro_batch(sequences: Seq[Sequence], roles: frozenset[int], device: torch.device | str = "cpu") -> Micro:
    """Packs sequences, all trunks before all branches; loss tokens are those of `roles`, never a trunk's first token."""
    lengths = [len(one.ids) for one in sequences]
    ids = np.concatenate([one.ids for one in sequences])
    role = np.concatenate([one.role for one in sequences])
    positions = np.concatenate([np.arange(n) for n in lengths])
    chosen = np.flatnonzero(_carries(role, roles) & (positions > 0))
    offsets = np.cumsum([0, *[len(one.advantages) for one in sequences]])
    step = np.concatenate([one.step + start for one, start in zip(sequences, offsets, strict=False)])
    advantage = np.concatenate([one.advantages for one in sequences])[step]
    old = np.concatenate([one.old_logprobs for one in sequences])
    reference = np.concatenate(
        [np.zeros(len(one.ids), np.float32) if one.reference_logprobs is None else one.reference_logprobs for one in sequences]
    )
    owner = np.repeat(np.arange(len(sequences)), lengths)[chosen]
    more = _branched(sequences, roles)
    owners = np.concatenate([owner, more.owner])

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    def joined(trunk: np.ndarray, branches: np.ndarray | None = None) -> Tensor:
        """Of the loss tokens; what a branch has none of is 0 there."""
        return tensor(np.concatenate([trunk, np.zeros(len(more.owner), trunk.dtype) if branches is None else branches]))

    def of_owner(values: list[float] | list[bool], kind: type) -> np.ndarray:
        return np.array(values, kind)[owners]

    return Micro(
        ids=tensor(np.concatenate([ids, more.ids]))[None],
        positions=tensor(np.concatenate([positions, more.positions]))[None],
        layout=Branched.of(lengths, more.runs, device) if more.runs else Packed.of(lengths, device),
        before=joined(chosen - 1, more.before),
        target=joined(ids[chosen], more.target),
        role=joined(role[chosen], more.role),
        advantage=joined(advantage[chosen].astype(np.float32)),
        old_logprob=joined(old[chosen]),
        reference_logprob=joined(reference[chosen]),
        step=joined(step[chosen].astype(np.int64)),
        episode_tokens=tensor(of_owner([max(one.n_reply, 1) for one in sequences], np.float32)),
        silent=tensor(of_owner([one.silent for one in sequences], bool)),
        solved=tensor(of_owner([one.solved for one in sequences], bool)),
        weight=joined(np.array([one.weight for one in sequences], np.float32)[owner], more.weight),
    )


@dataclass
class _Branches:
    """What the branches add to a packed pass: B tokens that are read, and their loss tokens."""

    runs: list[Run]
    ids: np.ndarray  # int64 [B]
    positions: np.ndarray  # int64 [B]
    before: np.ndarray  # int64, a loss token each, as the next four
    target: np.ndarray  # int64
    role: np.ndarray  # int8
    weight: np.ndarray  # float32
    owner: np.ndarray  # int64 index of its sequence


def _branched(sequences: Seq[Sequence], roles: frozenset[int]) -> _Branches:
    starts = np.cumsum([0, *[len(one.ids) for one in sequences]])
    end, runs, parts = int(starts[-1]), [], []
    for number, one in enumerate(sequences):
        for branch in one.branches:
            read = len(branch.ids) - 1
            at = np.concatenate([[starts[number] + branch.at], np.arange(end, end + read)])
            chosen = np.flatnonzero(_carries(branch.role, roles))
            parts.append(
                (branch.ids[:-1], branch.at + 1 + np.arange(read), at[chosen], branch.ids[chosen], branch.role[chosen],
                 np.full(len(chosen), branch.weight, np.float32), np.full(len(chosen), number))
            )  # fmt: skip
            if read:
                runs.append(Run(number, branch.at, read))
            end += read
    kinds = (np.int64, np.int64, np.int64, np.int64, np.int8, np.float32, np.int64)
    columns = zip(*parts, strict=True) if parts else [()] * len(kinds)
    return _Branches(runs, *(np.concatenate([np.empty(0, kind), *values]).astype(kind) for kind, values in zip(kinds, columns, strict=True)))
