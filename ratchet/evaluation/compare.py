"""Two versions on the same tasks: paired cluster bootstrap.

Tasks of one scene (or variation family) resemble each other: 512 games on 12 scenes are far fewer than 512 independent
observations. So whole clusters are drawn with replacement, and what is averaged is each task's own difference.
Shapes: R resamples, C clusters.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import RatchetError
from ratchet.evaluation.intervals import contracted_tail, expanded_tail, wilson
from ratchet.evaluation.outcomes import Outcomes, PerTask, per_task

SEED = 20260101  # one seed everywhere, so that the command line prints what the report says
LEVEL = 0.95
RESAMPLES = 10_000
MOST_RESAMPLES = 200_000
STRATUM_RESAMPLES = 20_000  # at most: a stratum's interval serves as a limit on losses
MIN_CLUSTERS = 6  # with fewer, no share of sign flips is below 1/2^5 = 3 %
CHUNK = 1_000_000  # drawn clusters held at once


@dataclass(frozen=True)
class Gain:
    """Mean paired difference b − a over tasks, its interval, the one-sided error of "b is better", and how it was resampled."""

    mean: float
    low: float
    high: float
    p_not_better: float
    resamples: int
    units: int


def compare(
    a_outcomes: Outcomes, b_outcomes: Outcomes, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = SEED
) -> dict[str, Any]:
    """How much better b is than a (gain = b − a), on tasks that both played without an environment error.

    `level` is two-sided: each bound of `gain` errs with (1 − level) / 2; a promotion at the one-sided error alpha reads the
    lower bound at `level_of(alpha)`. `resamples` is a minimum: where the level's tail would hold fewer than ten resamples,
    more are drawn (at most 200 000), and the result says how many. `p_not_better` is the smallest alpha at which the lower
    bound is above zero. `errors` counts tasks left out because an episode of either broke. A task with several samples
    counts its mean; `flips` lists tasks of which more than half of the samples are solved by one version only.
    A stratum is resampled by cluster where it has at least MIN_CLUSTERS, else by task, which its `resampled` says.
    Raises RatchetError where the panels' hashes or the tasks differ.
    """
    if not 0 < level < 1:
        raise RatchetError(f"level {level} is outside (0, 1); 0.95 is usual")
    a, b = per_task(a_outcomes), per_task(b_outcomes)
    _require_comparable(a, b)
    kept = (a.errors == 0) & (b.errors == 0)
    n = int(kept.sum())
    if n == 0:
        raise RatchetError(f"no task of panel {a.panel} was played by both versions without an environment error; run `evaluate` again")
    gaps, tail = b.share - a.share, (1 - level) / 2
    gain = bootstrap(gaps[kept], a.clusters[kept], tail, resamples, seed)
    return {
        "panel": a.panel,
        "panel_hash": a.panel_hash,
        "n": n,
        "errors": len(kept) - n,
        "level": level,
        "a": {"version": a.version, "success": wilson(_total(a, kept), n)},
        "b": {"version": b.version, "success": wilson(_total(b, kept), n)},
        "gain": _interval(gain),
        "p_not_better": gain.p_not_better,
        "flips": _flips(a, b, kept),
        "by_stratum": {
            str(name): _stratum(a, b, gaps, kept & (a.strata == name), str(name), tail, min(gain.resamples, STRATUM_RESAMPLES), seed)
            for name in np.unique(a.strata[kept])
        },
        "resamples": gain.resamples,
        "clusters": gain.units,
    }


def bootstrap(gaps: NDArray[np.float64], clusters: NDArray, tail: float, resamples: int, seed: int) -> Gain:
    """Percentile interval of the mean of `gaps` `(tasks,)` when whole clusters are drawn, each bound with error `tail`.

    The percentiles are expanded for few clusters (`expanded_tail`). And a sign is claimed only where it could be seen: if
    all m clusters that differ at all differed by chance, they would agree in sign once in 2^m times, so while 2^−m is above
    `tail` the interval is stretched to include zero. One cluster says nothing about the others: (−1, 1).
    """
    names, inverse = np.unique(clusters, return_inverse=True)
    sums = np.bincount(inverse, weights=gaps, minlength=len(names))
    counts = np.bincount(inverse, minlength=len(names)).astype(float)
    mean = float(gaps.mean())
    if len(names) < 2:
        return Gain(mean, -1.0, 1.0, 1.0, resamples, len(names))
    read_at = expanded_tail(tail, len(names))
    drawn = max(resamples, min(MOST_RESAMPLES, math.ceil(10 / max(read_at, 1e-9))))
    means = _resampled_means(sums, counts, drawn, seed)
    low, high = (float(value) for value in np.quantile(means, [read_at, 1 - read_at]))
    chance = 0.5 ** int(np.count_nonzero(np.abs(sums) > 1e-9))
    if chance > tail:
        low, high = min(low, 0.0), max(high, 0.0)
    beaten = (np.count_nonzero(means <= 0) + 1) / (drawn + 1)
    p = max(contracted_tail(beaten, len(names)), min(chance, 1.0))
    return Gain(mean, low, high, float(p), drawn, len(names))


def _resampled_means(sums: NDArray[np.float64], counts: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Means of `resamples` draws of C clusters with replacement, `(R,)`; every cluster holds at least one task."""
    rng = np.random.default_rng(seed)
    c = len(sums)
    size = max(1, CHUNK // c)
    parts = []
    for start in range(0, resamples, size):
        drawn_RC = rng.integers(c, size=(min(size, resamples - start), c), dtype=np.int32)
        parts.append(sums[drawn_RC].sum(1) / counts[drawn_RC].sum(1))
    return np.concatenate(parts)


def _stratum(
    a: PerTask, b: PerTask, gaps: NDArray[np.float64], mask: NDArray[np.bool_], name: str, tail: float, resamples: int, seed: int
) -> dict[str, Any]:
    """A stratum's own numbers. Where it lives on few scenes (a microwave is only in kitchens), tasks are resampled instead.

    That interval is somewhat short, which errs towards seeing a loss: it serves as a limit on losses, never to claim a gain.
    """
    n = int(mask.sum())
    by_cluster = len(np.unique(a.clusters[mask])) >= MIN_CLUSTERS
    units = a.clusters[mask] if by_cluster else a.ids[mask]
    gain = bootstrap(gaps[mask], units, tail, resamples, seed ^ zlib.crc32(name.encode()))
    return {
        "n": n,
        "a": _total(a, mask) / n,
        "b": _total(b, mask) / n,
        "gain": _interval(gain),
        "resampled": "cluster" if by_cluster else "task",
    }


def _require_comparable(a: PerTask, b: PerTask) -> None:
    if a.panel_hash != b.panel_hash:
        raise RatchetError(
            f"{a.version} was measured on panel {a.panel} ({a.panel_hash[:12]}) and {b.version} on panel {b.panel} ({b.panel_hash[:12]}): "
            "different tasks cannot be compared; evaluate both on one panel"
        )
    missing = sorted(set(a.ids.tolist()) ^ set(b.ids.tolist()))
    if missing:
        raise RatchetError(
            f"{a.version} and {b.version} did not play the same tasks of panel {a.panel} ({len(missing)} differ, first {missing[0]}); "
            "run `evaluate` again for both"
        )


def _flips(a: PerTask, b: PerTask, kept: NDArray[np.bool_]) -> dict[str, list[str]]:
    before, after = a.share > 0.5, b.share > 0.5
    return {"gained": a.ids[kept & after & ~before].tolist(), "lost": a.ids[kept & before & ~after].tolist()}


def _interval(gain: Gain) -> dict[str, float]:
    return {"mean": gain.mean, "low": gain.low, "high": gain.high}


def _total(tasks: PerTask, mask: NDArray[np.bool_]) -> float:
    return min(float(tasks.share[mask].sum()), float(mask.sum()))
