"""The arithmetic of the figures: medians with their spread, ratios, slopes, thirds, intervals over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, least, most and the spread between them as a share of the median."""
    middle = statistics.median(values)
    return {
        "median": round(middle, 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
        "spread": round((max(values) - min(values)) / middle, 4) if middle else 0.0,
        "n": len(values),
    }


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median of theirs over median of ours: above 1 where ours is quicker."""
    return round(statistics.median(theirs) / statistics.median(ours), 3)


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Exponent of a power law through the points: the least-squares slope of log value over log size."""
    return round(float(np.polyfit(np.log(sizes), np.log(values), 1)[0]), 3)


def last_over_first_third(seconds: Sequence[float]) -> float:
    """Mean of the last third over the mean of the first third, thirds rounded to whole turns."""
    third = max(1, round(len(seconds) / 3))
    return round(statistics.fmean(seconds[-third:]) / statistics.fmean(seconds[:third]), 3)


def padding_share(computed: int, real: int) -> float:
    """Share of the computed tokens that were padding. Tokens that nothing is predicted from may have been left out, one an episode.

    Raises ValueError where so few were computed that they cannot have been counted where they are computed.
    """
    if computed < 0.9 * real or not computed:
        raise ValueError(f"{computed} tokens were computed for {real} real ones; they were not counted where they are computed")
    return round(max(0, computed - real) / computed, 4)


def mean_interval(values: Sequence[float], resamples: int = 10000, seed: int = 1, confidence: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high): the percentile bootstrap over the values, which are one a seed."""
    sample = np.asarray(values, float)
    rng = np.random.default_rng(seed)
    means = sample[rng.integers(0, len(sample), (resamples, len(sample)))].mean(1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return round(float(sample.mean()), 4), round(float(low), 4), round(float(high), 4)
