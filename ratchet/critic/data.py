"""A buffer's episodes as what a critic is fitted on: tokens, where each step is read, rewards, weights.

Legend: T steps of an episode · S steps of a packed pass.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ratchet.critic.model import Pass
from ratchet.episodes.schema import rows_of
from ratchet.learners.batches import REPLY, Sequence, sequences_of
from ratchet.losses.expectile import iql_weights
from ratchet.models.attention import Packed


@dataclass
class Judged:
    """One episode with what the critic learns from."""

    sequence: Sequence
    before: np.ndarray  # int64 [T] index of the last token before each action
    last: np.ndarray  # int64 [T] index of its last token
    reward: np.ndarray  # float32 [T] the environment's
    aux: np.ndarray  # float32 [T] the retrospective one, for the critic alone
    weight: np.ndarray  # float32 [T] w_t
    terminated: bool
    solved: bool
    task_id: str

    @property
    def episode_id(self) -> str:
        return self.sequence.episode_id

    @property
    def size(self) -> int:
        """Tokens that a pass reads."""
        return len(self.sequence.ids)

    @property
    def outcome(self) -> float:
        """The environment's return."""
        return float(self.reward.sum())


@dataclass
class Batch:
    """A packed pass of whole episodes and what stands beside each of its S steps."""

    read: Pass
    reward: Tensor  # [S] the environment's
    aux: Tensor  # [S]
    weight: Tensor  # [S]
    following: Tensor  # int64 [S] the row of the next step, −1 at an episode's last one
    terminated: Tensor  # bool [S] of the episode


def judged(
    episodes: pa.Table,
    steps: pa.Table,
    aux: np.ndarray,
    *,
    reward: Literal["solved", "score"],
    truncated: Literal["bootstrap", "terminal"] = "bootstrap",
    time: bool = True,
    outcome: bool = True,
) -> list[Judged]:
    """All episodes without error and with steps, in the order of `steps` (sorted by id and t); `aux` [rows of steps].

    The reward is on the last action, a negative score as 0. `truncated` says whether an end by a budget is one to bootstrap from, or as
    final as the environment's.
    """
    rows = {row["episode_id"]: row for row in episodes.to_pylist() if row["error"] is None and row["n_steps"] > 0}
    places = rows_of(steps["episode_id"].to_pylist())
    out = []
    for one in sequences_of(steps, None, [name for name in places if name in rows]):
        row, span = rows[one.episode_id], places[one.episode_id]
        size = len(span)
        final = max(float(row["score"]), 0.0) if reward == "score" else float(row["solved"])
        one.solved = bool(row["solved"])
        rewards = np.zeros(size, np.float32)
        rewards[-1] = final
        before, last = reading_points(one)
        out.append(
            Judged(
                one,
                before,
                last,
                rewards,
                np.asarray(aux[span.start : span.stop], np.float32),
                iql_weights(size, final > 0, time=time, outcome=outcome).numpy(),
                bool(row["terminated"]) or (truncated == "terminal" and bool(row["truncated"])),
                bool(row["solved"]),
                row["task_id"],
            )
        )
    return out


def reading_points(one: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """(last token before each action, last token of it), int64 [T] each."""
    ends = np.flatnonzero(np.diff(one.step, append=one.step[-1] + 1))
    wrote = np.bincount(one.step, one.role == REPLY, len(ends)).astype(np.int64)
    return ends - wrote, ends


def packed_pass(ids: Seq[np.ndarray], before: Seq[np.ndarray], last: Seq[np.ndarray], device: torch.device | str = "cpu") -> Pass:
    """One pass over whole sequences, int64 [n] each, read at `before` and `last` of each, int64 [T]."""
    lengths = [len(one) for one in ids]
    starts = np.cumsum([0, *lengths[:-1]])
    return Pass(
        ids=_tensor(ids, device),
        positions=_tensor([np.arange(n) for n in lengths], device),
        layout=Packed.of(lengths, device),
        before=_tensor([points + start for points, start in zip(before, starts, strict=True)], device),
        last=_tensor([points + start for points, start in zip(last, starts, strict=True)], device),
    )


def batch_of(episodes: Seq[Judged], device: torch.device | str = "cpu") -> Batch:
    """Packs whole episodes into one pass."""
    counts = [len(one.reward) for one in episodes]
    following = np.arange(1, sum(counts) + 1)
    following[np.cumsum(counts) - 1] = -1
    return Batch(
        packed_pass([one.sequence.ids for one in episodes], [one.before for one in episodes], [one.last for one in episodes], device),
        reward=_tensor([one.reward for one in episodes], device),
        aux=_tensor([one.aux for one in episodes], device),
        weight=_tensor([one.weight for one in episodes], device),
        following=_tensor([following], device),
        terminated=_tensor([np.full(n, one.terminated) for one, n in zip(episodes, counts, strict=True)], device),
    )


def _tensor(values: Seq[np.ndarray], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.concatenate(values)).to(device)


def in_parts(episodes: Seq[Judged], held_out: Set[str]) -> tuple[list[Judged], list[Judged]]:
    """(to fit on, held out): by task, so that no task is on both sides."""
    train = [one for one in episodes if one.task_id not in held_out]
    return train, [one for one in episodes if one.task_id in held_out]
