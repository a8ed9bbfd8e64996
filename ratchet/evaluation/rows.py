"""One row an evaluated episode: what summaries and comparisons are computed from."""

from __future__ import annotations

import pyarrow as pa

from ratchet.episodes.files import table_of
from ratchet.evaluation.panels import Panel

COLUMNS = ("task_id", "stratum", "cluster", "sample", "seed", "solved", "score", "truncated", "error", "n_steps", "n_tokens", "episode_id")


def outcomes_of(episodes: pa.Table, steps: pa.Table, *, version: str, panel: Panel) -> pa.Table:
    """Outcomes of a version's episodes on a panel."""
    invalid: dict[str, int] = {}
    for episode_id, valid in zip(steps["episode_id"].to_pylist(), steps["valid"].to_pylist(), strict=True):
        invalid[episode_id] = invalid.get(episode_id, 0) + (not valid)
    rows = [
        {
            **{name: row[name] for name in COLUMNS},
            "version": version,
            "panel": panel.name,
            "panel_hash": panel.hash,
            "n_invalid": invalid.get(row["episode_id"], 0),
        }
        for row in episodes.to_pylist()
    ]
    return table_of("outcomes", rows)
