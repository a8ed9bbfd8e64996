"""Columns of the quality suite about results, panels, buffers, and lengths: what monitoring/quality_columns.py does for episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from monitoring.drift_columns import numbers
from monitoring.quality_columns import FULL_SCORE

QUANTILES = 101  # of a profile's lengths
LEAST_EPISODES = 50  # of a policy, below which its lengths shift by chance
LEAST_DEVIATION = 0.5  # steps or tokens, so that lengths that never varied do not shift infinitely


@dataclass(frozen=True)
class Results:
    """An evaluation's outcomes, and what they have to be outcomes of: the panel's name, hash and tasks, and its samples a task."""

    outcomes: pa.Table
    panel: str
    panel_hash: str
    tasks: frozenset[str] = field(repr=False)
    samples: int = 1


def outcome_columns(results: Results, episodes: pa.Table) -> dict[str, dict[str, Any]]:
    """Tables `outcomes` (a row an outcome) and `panel` (a row a task)."""
    table = results.outcomes
    frame = table.select(["task_id", "sample"]).to_pandas()
    failed = pc.is_valid(table["error"]).to_numpy()
    solved = pc.fill_null(table["solved"], False).to_numpy()
    score, steps, tokens, invalid = (numbers(table[name]) for name in ("score", "n_steps", "n_tokens", "n_invalid"))
    tasks = sorted(results.tasks)
    played = dict.fromkeys(tasks, 0) | frame["task_id"].value_counts().to_dict()
    versions = table["version"].to_pandas()
    usual = versions.mode().iloc[0] if table.num_rows else None
    columns = {
        "row": _row_names(table),
        "score": score,
        "outcomes.sample_unique": ~frame.duplicated(keep=False).to_numpy(),
        "outcomes.tasks_in_panel": frame["task_id"].isin(results.tasks).to_numpy(),
        "outcomes.same_panel": (table["panel_hash"].to_pandas() == results.panel_hash).to_numpy()
        & (table["panel"].to_pandas() == results.panel).to_numpy(),
        "outcomes.one_version": (versions == usual).to_numpy(),
        "outcomes.solved_known": pc.is_valid(table["solved"]).to_numpy() | failed,
        "outcomes.solved_is_full_score": (solved == (score >= FULL_SCORE)) | failed,
        "outcomes.counts_range": (steps >= 0) & (tokens >= 0) & (invalid >= 0) & (invalid <= steps),
        "outcomes.episode_matches": _matches(table, episodes),
    }
    return {"outcomes": columns, "panel": {"row": tasks, "outcomes.complete": [played[name] == results.samples for name in tasks]}}


def _matches(outcomes: pa.Table, episodes: pa.Table) -> np.ndarray:
    """Outcomes that say what the episode of their id says."""
    names = ["task_id", "stratum", "cluster", "sample", "seed", "solved", "score", "truncated", "error", "n_steps", "n_tokens"]
    at = pc.index_in(outcomes["episode_id"], value_set=episodes["episode_id"].combine_chunks())
    own = episodes.take(pc.fill_null(at, 0)) if episodes.num_rows else outcomes
    same = pc.is_valid(at).to_numpy()
    for name in names:
        one, other = outcomes[name].to_pandas(), own[name].to_pandas()
        same &= ((one == other) | (one.isna() & other.isna())).to_numpy()
    return same


def panel_columns(panels: Mapping[str, set[str]]) -> dict[str, Any]:
    """A row for each task of each panel: does another panel hold it, too?"""
    rows = [(name, task) for name in sorted(panels) for task in sorted(panels[name])]
    tasks = np.array([task for _, task in rows], dtype=object)
    _, inverse, counts = np.unique(tasks.astype(str), return_inverse=True, return_counts=True)
    return {"row": [f"{name}/{task}" for name, task in rows], "panels.disjoint": counts[inverse] == 1 if rows else np.ones(0, bool)}


def buffer_columns(episodes: pa.Table, round_number: int) -> dict[str, Any]:
    """A row an episode of the round's buffer."""
    return {
        "row": pc.fill_null(episodes["episode_id"], "null").to_pylist(),
        "buffer.not_from_later": (numbers(episodes["round"]) <= round_number),
        "buffer.no_error": pc.is_null(episodes["error"]).to_numpy(),
    }


def profile(episodes: pa.Table, steps: pa.Table) -> dict[str, Any]:
    """How long episodes and replies of each policy are: quantiles from 0 to 100 %. What the next round is compared with."""
    episodes = episodes.filter(pc.is_null(episodes["error"]))
    owner = pc.index_in(steps["episode_id"], value_set=episodes["episode_id"].combine_chunks())
    steps, owner = steps.filter(pc.is_valid(owner)), pc.drop_null(owner).to_numpy()
    policies = np.asarray([str(one) for one in episodes["policy_id"].to_pylist()], dtype=object)
    lengths, replies = numbers(episodes["n_steps"]), numbers(pc.fill_null(pc.list_value_length(steps["reply_ids"]), 0))
    found = {}
    for name in sorted(set(policies)):
        mine = policies == name
        values = {"episode_length": lengths[mine], "reply_length": replies[mine[owner]]}
        found[name] = {"episodes": int(mine.sum()), **{key: _quantiles(one) for key, one in values.items() if len(one)}}
    return found


def shifts(now: Mapping[str, Any], accepted: Mapping[str, Any]) -> dict[str, float]:
    """Largest shift of any policy's `episode_length` and `reply_length`, in standard deviations of the accepted round: the Wasserstein
    distance between the quantiles. Policies that are new or have few episodes are left out."""
    found: dict[str, float] = {}
    for name in now.keys() & accepted.keys():
        if min(now[name]["episodes"], accepted[name]["episodes"]) < LEAST_EPISODES:
            continue
        for key in ("episode_length", "reply_length"):
            if key in now[name] and key in accepted[name]:
                before, after = np.array(accepted[name][key]), np.array(now[name][key])
                shift = np.abs(after - before).mean() / max(float(before.std()), LEAST_DEVIATION)
                found[key] = max(found.get(key, 0.0), round(float(shift), 6))
    return found


def _quantiles(values: np.ndarray) -> list[float]:
    return [round(float(one), 3) for one in np.quantile(values, np.linspace(0, 1, QUANTILES))]


def _row_names(table: pa.Table) -> list[str]:
    return [f"{task}#{sample}" for task, sample in zip(table["task_id"].to_pylist(), table["sample"].to_pylist(), strict=True)]
