"""When a run needs no further round (methods §5): the gain is no longer worth one, or a drift gate fires. Pure numbers in, reasons out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ratchet.evaluation.compare import SEED
from ratchet.evaluation.outcomes import Outcomes, per_task
from ratchet.evaluation.promotion import KEPT, Verdict

RESAMPLED = 2000


@dataclass(frozen=True)
class Measured:
    """What the gates look at; None where a round had no such thing. Units: shares, nats a token, a ratio, bits."""

    ess: float | None = None  # effective share of the offline update's ratios
    kl: float | None = None  # of the updated actor from its reference
    td_ratio: float | None = None  # the critic's TD error on held-out tasks over that on those it was fitted on
    action_shift: float | None = None  # Jensen-Shannon divergence of the mix of actions from the round before


@dataclass(frozen=True)
class Limits:
    """Those of `loop.stop` (ratchet/settings_critic.py)."""

    min_gain: float
    patience: int
    min_ess: float
    max_kl: float
    max_td_ratio: float
    max_action_shift: float
    resamples: int = RESAMPLED


def chance_of_gain(a_outcomes: Outcomes, b_outcomes: Outcomes, min_gain: float, resamples: int = RESAMPLED, seed: int = SEED) -> float:
    """P(gain of b over a > `min_gain`) by the paired bootstrap over tasks that both played without an error; 0 where there is none."""
    a, b = per_task(a_outcomes), per_task(b_outcomes)
    at = {name: place for place, name in enumerate(a.ids.tolist())}
    common = [(at[name], place) for place, name in enumerate(b.ids.tolist()) if name in at and not a.errors[at[name]] and not b.errors[place]]
    if not common:
        return 0.0
    first, second = (np.array(column) for column in zip(*common, strict=True))
    gaps = b.share[second] - a.share[first]
    drawn = np.random.default_rng(seed).integers(0, len(gaps), (resamples, len(gaps)))
    return float(np.mean(gaps[drawn].mean(1) > min_gain + 1e-12))


def jensen_shannon(a: Iterable[str], b: Iterable[str]) -> float:
    """Jensen-Shannon divergence of two mixes of names, bits in [0, 1]; 0 where one is empty."""
    first, second = Counter(a), Counter(b)
    if not first or not second:
        return 0.0
    total = 0.0
    for name in sorted({*first, *second}):
        p, q = first[name] / first.total(), second[name] / second.total()
        middle = (p + q) / 2
        total += sum(0.5 * share * math.log2(share / middle) for share in (p, q) if share)
    return min(max(total, 0.0), 1.0)


def fired(found: Measured, limits: Limits) -> list[str]:
    """Which gates fire, in sentences; what was not measured does not."""
    gates = [
        ("the effective share of the offline update's ratios", found.ess, found.ess is not None and found.ess < limits.min_ess, f"below {limits.min_ess:g}"),
        ("the divergence from the reference", found.kl, found.kl is not None and found.kl > limits.max_kl, f"above {limits.max_kl:g} nats a token"),
        (
            "the critic's TD error on held-out tasks over that on fitted ones",
            found.td_ratio,
            found.td_ratio is not None and found.td_ratio > limits.max_td_ratio,
            f"above {limits.max_td_ratio:g}",
        ),
        (
            "the shift of the mix of actions",
            found.action_shift,
            found.action_shift is not None and found.action_shift > limits.max_action_shift,
            f"above {limits.max_action_shift:g} bits",
        ),
    ]
    return [f"{name} is {value:.3g}, {limit}" for name, value, is_fired, limit in gates if is_fired and value is not None]


def judged(before: Mapping[str, Any] | None, chance: float, gates: list[str], limits: Limits) -> dict[str, Any]:
    """`{chance, misses, gates, stop}`: `misses` counts the rounds in a row whose chance of a gain was below a half, `before` is what the
    round before said; `stop` is the reason to stop, or None."""
    misses = (before or {}).get("misses", 0) + 1 if chance < 0.5 else 0
    said = [f"{misses} rounds in a row had a chance below a half to gain more than {100 * limits.min_gain:g} points on select"]
    reasons = (said if misses >= limits.patience else []) + gates
    return {"chance": chance, "misses": misses, "gates": gates, "stop": "; ".join(reasons) or None}


def kept_by_select(verdict: Verdict, success: float, best: Mapping[str, Any]) -> Verdict:
    """Only the best round on `select` so far goes up for promotion; `best` is the best one of those before."""
    if not verdict.promoted or success >= best["select"]:
        return verdict
    reason = f"round {best['round']} did better on select ({100 * best['select']:.1f} % against {100 * success:.1f} %), and the best round is what is promoted"
    return replace(verdict, promoted=False, event=KEPT, reasons=[*verdict.reasons, reason])
