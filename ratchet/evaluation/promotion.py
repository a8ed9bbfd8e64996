"""When a candidate becomes champion: the ratchet's pawl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.errors import RatchetError

PROMOTED, KEPT, REGRESSION = "model.promoted", "model.kept", "model.regression"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`promoted`, the event that goes out, and why, in sentences for a person."""

    promoted: bool
    event: str
    reasons: list[str]


def spending(alpha: float, rounds: int, k: int) -> float:
    """The one-sided error that round `k` of `rounds` may spend, so that a run's false promotions stay within `alpha`.

    Each round gets alpha / rounds. The sum is alpha, which holds however much the rounds resemble each other (they share the
    panel and the champion), with no order of importance among rounds: schedules that spend early (Pocock) or late
    (O'Brien-Fleming) suppose one growing sample of one hypothesis, while each round tests a new candidate.
    Raises RatchetError for a round outside 1 … rounds.
    """
    if not 1 <= k <= rounds:
        raise RatchetError(f"round {k} is outside 1 … {rounds}; run `ratchet render`, or give the count of rounds with `--set rounds=N`")
    return alpha / rounds


def open_spending(alpha: float, k: int) -> float:
    """The one-sided error that look `k` = 1, 2, … may spend where nobody knows how many there will be: 6 alpha / (π k)².

    The sum over all looks is alpha (Σ 1/k² = π²/6). For a scheduled look at a champion, which goes on for as long as it is one; the
    first looks are the most telling, and the hundredth still sees a large loss. Raises RatchetError for k below 1.
    """
    if k < 1:
        raise RatchetError(f"look {k} is none; looks count from 1")
    return 6 * alpha / (math.pi * k) ** 2


def level_of(alpha: float) -> float:
    """The two-sided level of `compare` whose lower bound errs with the one-sided `alpha`."""
    return 1 - 2 * alpha


def decide(comparison: dict[str, Any], max_stratum_loss: float) -> Verdict:
    """Decides on a COMPARISON of champion (a) and candidate (b) on `confirm`, made at `level_of(spending(…))`.

    - promoted: the gain's lower bound is above zero and no stratum lost too much
    - `model.regression`: the gain's upper bound is below zero, or a stratum lost too much
    - `model.kept`: everything else; the champion stays

    A candidate with the champion's own weights, of a round that learned nothing, is neither better nor worse: where it was sampled, what
    differs is chance, and once in a while that is more than the spent error.

    A stratum lost too much when its point loss is above `max_stratum_loss` *and* its gain's upper bound is below zero: a stratum of a
    dozen tasks loses 0.15 by chance alone, and a limit on the point alone would flap.
    """
    reasons = [_gain_reason(comparison)]
    if is_itself(comparison):
        return Verdict(False, KEPT, [*reasons, "its weights are the champion's: whatever differs is chance"])
    gain = comparison["gain"]
    lost = [one["text"] for one in lost_strata(comparison, max_stratum_loss)]
    better, worse = gain["low"] > 0, gain["high"] < 0
    reasons += lost or [f"no task type lost more than {max_stratum_loss:g} beyond chance"]
    if better and not lost:
        return Verdict(True, PROMOTED, reasons)
    if worse or lost:
        return Verdict(False, REGRESSION, reasons)
    return Verdict(False, KEPT, reasons)


def is_itself(comparison: Mapping[str, Any]) -> bool:
    """Whether both sides are one version, that is the same weights."""
    return comparison["a"]["version"] == comparison["b"]["version"]


def kept_by_drift(verdict: Verdict, columns: list[str]) -> Verdict:
    """`verdict`, but not promoted where `columns` (names as `ratchet waive` knows them) drifted beyond their limits for failing."""
    if not columns:
        return verdict
    reason = f"not promoted: {', '.join(columns)} beyond the limit; look at the round's drift.html, then `ratchet waive {columns[0]} --reason …`"
    return Verdict(False, KEPT if verdict.promoted else verdict.event, [*verdict.reasons, reason])


def lost_strata(comparison: Mapping[str, Any], limit: float) -> list[dict[str, Any]]:
    """`{"stratum", "gain", "text"}` of each stratum that lost more than `limit`, beyond chance."""
    return [
        {
            "stratum": name,
            "gain": one["gain"]["mean"],
            "text": f"{name} lost {-one['gain']['mean']:.3f} (limit {limit:g}; gain at most {one['gain']['high']:+.3f} over {one['n']} tasks)",
        }
        for name, one in sorted(comparison["by_stratum"].items())
        if -one["gain"]["mean"] > limit and one["gain"]["high"] < 0
    ]


def _gain_reason(comparison: dict[str, Any]) -> str:
    gain, alpha = comparison["gain"], (1 - comparison["level"]) / 2
    measured = (
        f"gain on {comparison['panel']} {gain['mean']:+.3f}, between {gain['low']:+.3f} and {gain['high']:+.3f} "
        f"at the spent one-sided error {alpha:.4g} ({comparison['n']} tasks in {comparison['clusters']} clusters)"
    )
    if gain["low"] > 0:
        return f"{measured}: above zero"
    if gain["high"] < 0:
        return f"{measured}: below zero"
    return f"{measured}: a gain is not shown"
