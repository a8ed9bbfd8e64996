"""What an estimator of credit sees of N episodes, and what it says about them.

Legend: N episodes · T_i steps of episode i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.episodes.schema import rows_of


@dataclass(frozen=True)
class Batch:
    """N episodes in the order in which their advantages are wanted. What an estimator does not read may be left out."""

    rewards: Sequence[float] | np.ndarray  # [N] each episode's outcome
    groups: Sequence[str]  # [N] the samples of one task from one version of the policy have the same
    n_steps: Sequence[int]  # [N] T_i
    step_rewards: Sequence[np.ndarray] = field(default=())  # [N] of float64 [T_i]; their sum is the episode's reward
    observations: Sequence[Sequence[str]] = field(default=())  # [N] of T_i texts: what was read before each action, as it came
    entropy: Sequence[np.ndarray] = field(default=())  # [N] of float64 [T_i]: mean over a reply's tokens, nats; NaN where it has none
    n_tokens: Sequence[int] = field(default=())  # [N] generated tokens
    length: Sequence[int] = field(default=())  # [N] all tokens of the episode, observations included
    max_length: int | None = None  # of an episode; a longer one would have been truncated
    truncated: Sequence[bool] = field(default=())  # [N] ended by a budget
    stratum: Sequence[str] = field(default=())  # [N] kind of task

    def members(self) -> list[list[int]]:
        """Indices of each group's episodes, groups in the order of their first episode."""
        found: dict[str, list[int]] = {}
        for index, group in enumerate(self.groups):
            found.setdefault(group, []).append(index)
        return list(found.values())


class Credit(NamedTuple):
    """`advantages`: float32 [T_i] of each episode. `silent` [N]: episodes whose group says nothing; the terms that learn from
    advantages, and their KL, take exactly no gradient from them, though their tokens count in the denominators."""

    advantages: list[np.ndarray]
    silent: np.ndarray


def per_step(advantage: np.ndarray, n_steps: Sequence[int]) -> list[np.ndarray]:
    """The same advantage at every step of an episode: float [N] → N float32 arrays [T_i]."""
    return [np.full(steps, value, np.float32) for steps, value in zip(n_steps, advantage, strict=True)]


def batch_of(rows: Sequence[dict[str, Any]], steps: pa.Table, *, reward: str, max_length: int | None = None) -> Batch:
    """The batch of the episodes `rows`, which have steps and no error, with their rows in a table of steps sorted by id and t.

    `reward: solved` puts the verified outcome on the last action; `score` gives each action what it added to the benchmark's graded
    score (a negative score counts as 0), so that a reward at any step reaches the estimator.
    """
    places = rows_of(steps.column("episode_id").to_pylist())
    spans = [places[row["episode_id"]] for row in rows]
    rewards = [float(row[reward]) for row in rows]
    observations = steps.column("observation").to_pylist()
    entropy, replied = _means(steps, "entropy"), _lengths(steps, "reply_ids")
    tokens = np.concatenate([[0], np.cumsum(_lengths(steps, "prompt_ids") + replied)])
    written = np.concatenate([[0], np.cumsum(replied)])
    scores = steps.column("score").to_numpy(zero_copy_only=False).astype(np.float64) if reward == "score" else None
    return Batch(
        rewards=rewards,
        groups=[row["group_id"] for row in rows],
        n_steps=[row["n_steps"] for row in rows],
        step_rewards=[_step_rewards(value, span, scores) for value, span in zip(rewards, spans, strict=True)],
        observations=[observations[span.start : span.stop] for span in spans],
        entropy=[entropy[span.start : span.stop] for span in spans],
        n_tokens=[int(written[span.stop] - written[span.start]) for span in spans],
        length=[int(tokens[span.stop] - tokens[span.start]) for span in spans],
        max_length=max_length,
        truncated=[bool(row["truncated"]) for row in rows],
        stratum=[row["stratum"] or "" for row in rows],
    )


def _step_rewards(reward: float, span: range, scores: np.ndarray | None) -> np.ndarray:
    """What the last step gets completes the sum, so a reward after the last recorded score is not lost."""
    found = np.zeros(len(span))
    if scores is not None:
        found[:-1] = np.diff(np.maximum(np.nan_to_num(scores[span.start : span.stop - 1]), 0), prepend=0)
    found[-1] = reward - found[:-1].sum()
    return found


def _lengths(steps: pa.Table, name: str) -> np.ndarray:
    """Length of each row's list [rows]; null is 0."""
    return np.array([0 if one is None else one for one in pc.list_value_length(steps.column(name)).to_pylist()], np.int64)


def _means(steps: pa.Table, name: str) -> np.ndarray:
    """Mean of each row's list, float64 [rows], NaN where it is empty."""
    lengths = _lengths(steps, name)
    flat = pc.list_flatten(steps.column(name)).to_numpy(zero_copy_only=False).astype(np.float64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    with np.errstate(invalid="ignore"):
        return np.bincount(rows, flat, len(lengths)) / np.where(lengths > 0, lengths, np.nan)
