"""Shares with intervals, success over several samples of a task, and the correction for few clusters."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ratchet.errors import RatchetError

Interval: TypeAlias = dict[str, float | None]
"""`{"mean", "low", "high"}`; `mean` is None where there was nothing to average."""

NORMAL = NormalDist()
LARGE = 1000  # degrees of freedom from which Student's t is the normal distribution to three digits


def wilson(successes: float, n: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a share (Wilson 1927): share ± z, in units of the standard error *at the bound*.

    `successes` of `n` independent tasks; a fraction is fine where a task's success is the mean of several samples. `level`
    is two-sided. Never leaves [0, 1] and has a width at 0 and at n successes. n = 0 knows nothing: mean None, (0, 1).
    Raises RatchetError for successes outside [0, n] and for a level outside (0, 1).
    """
    _require_level(level)
    if not 0 <= successes <= n:
        raise RatchetError(f"{successes} successes of {n} tasks is no share; count each task once")
    if n == 0:
        return {"mean": None, "low": 0.0, "high": 1.0}
    z = NORMAL.inv_cdf((1 + level) / 2)
    share, shrink = successes / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / shrink
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / shrink
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == n else min(1.0, middle + half)
    return {"mean": share, "low": low, "high": high}


def avg_at_k(solved: ArrayLike, tried: ArrayLike) -> float | None:
    """avg@k: mean over tasks of the share of its samples that were solved.

    `solved`, `tried`: one count a task, `(tasks,)`; tasks without a sample are left out; None where none is left.
    """
    c, n = np.asarray(solved, float), np.asarray(tried, float)
    return float(np.mean(c[n > 0] / n[n > 0])) if np.any(n > 0) else None


def pass_hat_k(solved: ArrayLike, tried: ArrayLike, k: int) -> float | None:
    """pass^k: the chance that k samples of one task are *all* solved, mean over tasks (tau-bench, Yao et al. 2024, §3).

    The unbiased estimator of a task with c solved of n samples is C(c, k) / C(n, k). `solved`, `tried`: `(tasks,)`; tasks
    with fewer than k samples say nothing about k and are left out; None where none is left.
    """
    if k < 1:
        raise RatchetError(f"pass^k with k = {k}; k counts samples and is at least 1")
    c, n = np.asarray(solved, float), np.asarray(tried, float)
    enough = n >= k
    if not np.any(enough):
        return None
    i = np.arange(k)[:, None]
    factors = np.maximum(c[enough] - i, 0.0) / (n[enough] - i)
    return float(np.mean(np.prod(factors, axis=0)))


def student_t_cdf(t: float, df: int) -> float:
    """P(T ≤ t) for Student's t with `df` ≥ 1 degrees of freedom, a whole number (Abramowitz & Stegun 26.7.3, 26.7.4)."""
    if df >= LARGE:
        return NORMAL.cdf(t)
    angle = math.atan(abs(t) / math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine if df % 2 else 1.0), 0.0
    for i in range(2 + df % 2, df + 1, 2):  # 1, 1/2 c², 1·3/(2·4) c⁴, … or c, 2/3 c³, …
        total += term
        term *= cosine * cosine * (i - 1) / i
    inside = 2 / math.pi * (angle + sine * total) if df % 2 else sine * total
    return (1 + inside) / 2 if t >= 0 else (1 - inside) / 2


def student_t_quantile(p: float, df: int) -> float:
    """The t with P(T ≤ t) = p, by bisection; p in (0, 1)."""
    low, high = -1.0, 1.0
    while student_t_cdf(low, df) > p:
        low *= 2
    while student_t_cdf(high, df) < p:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def expanded_tail(tail: float, units: int) -> float:
    """The tail to read off a bootstrap distribution of `units` resampled units, so that the error really is `tail`.

    A percentile interval is too short by sqrt((n - 1) / n), and by using z where t with n - 1 degrees of freedom belongs:
    with 12 scenes a nominal 2.5 % is a real 4.4 %. Reading it at Φ(−t_{tail, n−1} sqrt(n / (n − 1))) instead is the
    *expanded percentile interval* (Hesterberg 2015, "What teachers should know about the bootstrap", §5.2). `units` ≥ 2.
    """
    t = student_t_quantile(1 - tail, units - 1)
    return NORMAL.cdf(-t * math.sqrt(units / (units - 1)))


def contracted_tail(tail: float, units: int) -> float:
    """Inverse of `expanded_tail`: the error to state for a share `tail` of the bootstrap distribution."""
    z = NORMAL.inv_cdf(min(max(tail, 1e-16), 1 - 1e-16))
    return student_t_cdf(z * math.sqrt((units - 1) / units), units - 1)


def _require_level(level: float) -> None:
    if not 0 < level < 1:
        raise RatchetError(f"level {level} is outside (0, 1); 0.95 is usual")
