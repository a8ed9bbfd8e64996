"""Statistics of samples that learning and monitoring share. Plain numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing their mean rank; float64 [N]."""
    found = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(found, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2)[inverse]


def effective_share(ratios: np.ndarray) -> float:
    """Effective sample size over N: (Σ r)² / (N · Σ r²), in (0, 1] (Kong 1992); 1 where there are none."""
    return float(ratios.sum() ** 2 / (len(ratios) * np.square(ratios).sum())) if len(ratios) else 1.0
