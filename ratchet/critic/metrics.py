"""How good a critic is on episodes that it was not fitted on. Plain numpy; no metric looks at retrospective rewards but the TD error.

Legend: S steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.samples import ranks

BINS = 10


def rank_correlation(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's; None where one of both has a single value, or there are fewer than two."""
    first, second = ranks(a), ranks(b)
    if len(first) < 2 or not first.std() or not second.std():
        return None
    return float(np.corrcoef(first, second)[0, 1])


def calibration_error(value: np.ndarray, realised: np.ndarray, bins: int = BINS) -> float | None:
    """Mean over `bins` equally filled bins of V of |mean V − mean of what came of it|, weighted by steps; [S], [S]."""
    if not len(value):
        return None
    order = np.argsort(value, kind="stable")
    gaps = [(len(part), abs(float(value[part].mean() - realised[part].mean()))) for part in np.array_split(order, bins) if len(part)]
    return sum(size * gap for size, gap in gaps) / len(value)
