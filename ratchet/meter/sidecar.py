"""What a meter said of episodes, as the table of the kind `meter` (ratchet/episodes/schema.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ratchet.credit.meter import Estimates
from ratchet.episodes.schema import METER


def meter_table(
    episode_ids: Sequence[str], estimates: Sequence[Estimates], costs: Sequence[np.ndarray], changes: Sequence[np.ndarray], weights: Sequence[np.ndarray | None]
) -> pa.Table:
    """One row a step; the costs' terminal entry is left out."""
    columns: dict[str, list[object]] = {name: [] for name in METER.names}
    for name, one, c, change, weight in zip(episode_ids, estimates, costs, changes, weights, strict=True):
        steps = len(change)
        columns["episode_id"] += [name] * steps
        columns["t"] += range(steps)
        for key, values in (("completable", one.completable), ("p", one.p), ("parsed", one.parsed), ("cost", c[:-1]), ("delta", change)):
            columns[key] += values.tolist()
        columns["remaining"] += [None if np.isnan(value) else value for value in one.remaining.tolist()]
        columns["weight"] += [None] * steps if weight is None else weight.tolist()
    return pa.table({name: pa.array(columns[name], METER.field(name).type) for name in METER.names})
