"""What a meter learns from a recorded episode: a value for every prefix that ends before an action (methods §3).

Legend: T steps of an episode · n [T] tokens of each action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ratchet.errors import RatchetError
from ratchet.rollout.noise import episode_key

Target = Literal["ttg", "steps", "score"]
SCALE = 100  # a future score in [0, 1] is written as a whole number of hundredths
SPLITS = ("sft", "rl", "calibration")


@dataclass(frozen=True)
class Labelled:
    """One episode as a meter sees it. `values` [T] are the target before each action, None where it is not completable."""

    episode_id: str
    task_id: str
    policy_id: str
    solved: bool
    truncated: bool
    score: float
    tokens: np.ndarray  # float64 [T]: n_t in the meter's tokenizer, in the target's unit
    generated: np.ndarray  # int64 [T]: n_t as generated
    values: list[int | None]


def values_of(target: Target, tokens: np.ndarray, *, solved: bool, score: float) -> list[int | None]:
    """ttg: Σ_{u ≥ t} n_u; steps: T − t; both None in a failure. score: how much of the final score (in hundredths) is missing, so that
    less is better for all of them; of every episode."""
    steps = len(tokens)
    if target == "score":
        return [round(SCALE * (1.0 - min(max(score, 0.0), 1.0)))] * steps
    if not solved:
        return [None] * steps
    if target == "steps":
        return [steps - t for t in range(steps)]
    return [round(float(value)) for value in np.cumsum(np.asarray(tokens, np.float64)[::-1])[::-1]]


def units(target: Target, tokens: np.ndarray) -> np.ndarray:
    """What a step takes off a perfect meter's value, float64 [T]: its tokens, one step, or no score."""
    if target == "ttg":
        return np.asarray(tokens, np.float64)
    return np.full(len(tokens), 1.0 if target == "steps" else 0.0)


def verbosity(tokens: Mapping[str, Sequence[np.ndarray]]) -> dict[str, float]:
    """Factor by which a policy's tokens are multiplied so that all policies write equally much a step: mean over all steps of the pool ÷
    mean over the policy's. `tokens` are those of each policy's episodes."""
    means = {name: float(np.mean(np.concatenate(list(found)))) for name, found in tokens.items() if sum(map(len, found))}
    whole = [one for found in tokens.values() for one in found]
    middle = float(np.mean(np.concatenate(whole))) if whole else 1.0
    return {name: middle / mean if mean > 0 else 1.0 for name, mean in means.items()}


def split(episodes: Sequence[Labelled], shares: Mapping[str, float], seed: int) -> dict[str, list[Labelled]]:
    """The episodes by split, split by task: all of one task are in one split.

    Tasks with a success and tasks without one are dealt separately, so that both classes are in every split where there are enough of
    them. Raises RatchetError, with the counts, where the pool has no success or no failure.
    """
    solved = sum(one.solved for one in episodes)
    if not 0 < solved < len(episodes):
        what = "no failure" if solved else "no success"
        raise RatchetError(
            f"fit_meter: the pool has {what} ({solved} of {len(episodes)} episodes solved), so one of a meter's two answers has no label; "
            "add a weaker and a stronger policy to harvest.pool, or raise harvest.episodes"
        )
    of_task: dict[str, list[Labelled]] = {}
    for one in episodes:
        of_task.setdefault(one.task_id, []).append(one)
    found: dict[str, list[Labelled]] = {name: [] for name in SPLITS}
    for has_success in (True, False):
        tasks = [task for task, some in of_task.items() if any(one.solved for one in some) == has_success]
        tasks.sort(key=lambda task: (int(episode_key(seed, task, "meter")), task))
        for name, part in zip(SPLITS, _dealt(tasks, [shares[name] for name in SPLITS]), strict=True):
            found[name] += [one for task in part for one in of_task[task]]
    return found


def _dealt(tasks: list[str], shares: Sequence[float]) -> list[list[str]]:
    """Cut by shares; a share above 0 gets at least one where there are as many tasks as such shares."""
    counts = [int(share * len(tasks)) for share in shares]
    wanted = [place for place, share in enumerate(shares) if share > 0]
    for place in wanted:
        if len(tasks) >= len(wanted):
            counts[place] = max(counts[place], 1)
    while sum(counts) > len(tasks):
        counts[counts.index(max(counts))] -= 1
    counts[wanted[0]] += len(tasks) - sum(counts)
    edges = np.cumsum([0, *counts])
    return [tasks[start:stop] for start, stop in pairwise(edges)]


def balanced(completable: Sequence[bool], seed: int) -> np.ndarray:
    """Indices in which both classes are equally many: the rarer class is drawn again until it has as many, in an order of `seed`'s."""
    flags = np.asarray(completable, bool)
    order = np.random.default_rng(seed).permutation(len(flags))
    classes = [order[flags[order]], order[~flags[order]]]
    if not all(len(one) for one in classes):
        return order
    size = max(map(len, classes))
    drawn = np.concatenate([np.resize(one, size) for one in classes])
    return np.random.default_rng([seed, 1]).permutation(drawn)


def describe(episodes: Mapping[str, Sequence[Labelled]]) -> dict[str, Any]:
    """Counts a split: episodes, prefixes, and the share of the prefixes that are completable."""
    told = {}
    for name, some in episodes.items():
        flags = [value is not None for one in some for value in one.values]
        told[name] = {"episodes": len(some), "prefixes": len(flags), "completable": float(np.mean(flags)) if flags else None}
    return told
