"""What one version does on one panel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.evaluation.intervals import avg_at_k, pass_hat_k, wilson
from ratchet.evaluation.outcomes import Outcomes, PerTask, as_table, per_task


def summarise(outcomes: Outcomes) -> dict[str, Any]:
    """One version's outcomes on one panel as numbers.

    Episodes that the environment broke (`error`) are counted in `errors` and left out of everything else: never scored 0.
    `n` is the tasks with at least one episode left, `samples` the episodes a task. `success` is the mean over tasks of the
    share of samples solved; its Wilson interval (95 %) counts tasks, since samples of one task are not independent. `score`,
    `steps`, `tokens` and `truncated_share` are means over episodes, `invalid_share` over steps; `pass_hat_k` is for k =
    `samples`. A mean of nothing is None. Raises RatchetError for no rows or rows of several versions or panels.
    """
    table = as_table(outcomes)
    tasks = per_task(table)
    kept = table.filter(pc.is_null(table.column("error")))
    samples = int((tasks.tried + tasks.errors).max())
    steps = _sum(kept, "n_steps")
    everything = np.ones(len(tasks.ids), bool)
    return {
        "panel": tasks.panel,
        "panel_hash": tasks.panel_hash,
        "errors": int(tasks.errors.sum()),
        "samples": samples,
        **_success(tasks, everything),
        "score": _mean(kept, "score"),
        "avg_at_k": avg_at_k(tasks.solved, tasks.tried),
        "pass_hat_k": pass_hat_k(tasks.solved, tasks.tried, samples),
        "steps": _mean(kept, "n_steps"),
        "tokens": _mean(kept, "n_tokens"),
        "invalid_share": _sum(kept, "n_invalid") / steps if steps else None,
        "truncated_share": _mean(kept, "truncated"),
        "by_stratum": {str(stratum): _success(tasks, tasks.strata == stratum) for stratum in np.unique(tasks.strata)},
    }


def _success(tasks: PerTask, mask: np.ndarray) -> dict[str, Any]:
    mask = mask & (tasks.tried > 0)
    n = int(mask.sum())
    return {"n": n, "success": wilson(min(float(tasks.share[mask].sum()), n), n)}


def _sum(table: pa.Table, column: str) -> float:
    return float(pc.sum(table.column(column).cast(pa.float64())).as_py() or 0.0)


def _mean(table: pa.Table, column: str) -> float | None:
    values = table.column(column)
    return pc.mean(values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values).as_py()


def selected(evaluation: dict[str, Any]) -> float:
    """Success on `select` of the version that an evaluation chose."""
    return next(one["select"]["success"]["mean"] for one in evaluation["candidates"] if one["name"] == evaluation["selected"])
