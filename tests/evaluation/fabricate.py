"""Made-up outcomes of a version on a panel."""

from __future__ import annotations

import numpy as np

STRATA = ("pick", "clean", "heat")


def outcomes(
    version: str, solved: list[bool] | np.ndarray, *, clusters: int = 12, samples: int = 1, panel: str = "confirm", panel_hash: str = "h1"
) -> list[dict]:
    """Rows of `len(solved) / samples` tasks, task by task; task i is of cluster i mod `clusters`."""
    return [
        {
            "version": version,
            "panel": panel,
            "panel_hash": panel_hash,
            "task_id": f"task-{i // samples:04d}",
            "stratum": STRATA[i // samples % len(STRATA)],
            "cluster": f"scene-{i // samples % clusters}",
            "sample": i % samples,
            "seed": 0,
            "solved": bool(won),
            "score": float(won),
            "truncated": not won,
            "error": None,
            "n_steps": 10,
            "n_tokens": 40,
            "n_invalid": 1,
            "episode_id": f"{version}-{i}",
        }
        for i, won in enumerate(solved)
    ]


def broken(row: dict) -> dict:
    """The same episode, ended by an environment that crashed."""
    return row | {"error": "crash: exit code 1", "solved": False, "score": 0.0}
