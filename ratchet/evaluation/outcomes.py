"""Outcome rows (one episode each) as columns and as one line a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ratchet.episodes.files import table_of
from ratchet.errors import RatchetError

Outcomes: TypeAlias = pa.Table | list[dict]
"""Rows of the kind `outcomes` of one version on one panel."""


@dataclass(frozen=True)
class PerTask:
    """One version's outcomes a task, sorted by task id; all arrays `(tasks,)`.

    `tried` counts samples that ended without an environment error, `solved` those of them that were solved, `errors` the rest.
    """

    version: str
    panel: str
    panel_hash: str
    ids: NDArray[np.str_]
    strata: NDArray[np.str_]
    clusters: NDArray[np.str_]
    tried: NDArray[np.int64]
    solved: NDArray[np.int64]
    errors: NDArray[np.int64]

    @property
    def share(self) -> NDArray[np.float64]:
        """Share of a task's samples that were solved; 0 where none was tried (look at `tried`)."""
        return self.solved / np.maximum(self.tried, 1)


def as_table(outcomes: Outcomes) -> pa.Table:
    """Rows or a table as a table. Raises RatchetError where there are none."""
    table = table_of("outcomes", outcomes) if isinstance(outcomes, list) else outcomes
    if table.num_rows == 0:
        raise RatchetError("there are no outcomes to summarise; run the stage `evaluate` on a panel with tasks")
    return table


def only(table: pa.Table, column: str) -> str:
    """The one value of a column. Raises RatchetError where outcomes of several versions or panels are mixed."""
    values = sorted(str(value) for value in table.column(column).unique().to_pylist())
    if len(values) > 1:
        raise RatchetError(f"outcomes mix {column} {values[0]} and {values[1]}; pass those of one version on one panel")
    return values[0]


def per_task(outcomes: Outcomes) -> PerTask:
    """Counts a task. A solved value that is missing without an error is refused: it would silently count as a failure."""
    table = as_table(outcomes)
    failed = np.asarray(table.column("error").is_valid())
    solved_known = np.asarray(table.column("solved").is_valid())
    if np.any(~failed & ~solved_known):
        raise RatchetError("an outcome has neither `solved` nor `error`; run the stage `evaluate` again")
    solved = np.asarray(table.column("solved").fill_null(False)).astype(bool) & ~failed
    ids, first, inverse = np.unique(_text(table, "task_id"), return_index=True, return_inverse=True)

    def count(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(inverse[mask], minlength=len(ids)).astype(np.int64)

    return PerTask(
        version=only(table, "version"),
        panel=only(table, "panel"),
        panel_hash=only(table, "panel_hash"),
        ids=ids,
        strata=_text(table, "stratum")[first],
        clusters=_text(table, "cluster")[first],
        tried=count(~failed),
        solved=count(solved),
        errors=count(failed),
    )


def _text(table: pa.Table, column: str) -> NDArray[np.str_]:
    return np.asarray([str(value) for value in table.column(column).to_pylist()])
