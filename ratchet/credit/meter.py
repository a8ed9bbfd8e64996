"""DeltaTTG's credit (methods §3): what a progress meter's costs say about each step, as masses for `ratchet.credit.share`.

Legend: T steps of an episode · costs [T + 1], the last one terminal · C the cost of what cannot be completed any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ratchet.credit.share import Form, bounded_mean, mixed_share

Delta = Literal["paper", "td"]
Cost = Literal["hard", "soft"]
Terminal = Literal["C", "meter"]


@dataclass(frozen=True)
class Estimates:
    """What a meter says before each of T actions, in tokens of its own tokenizer."""

    completable: np.ndarray  # bool [T], b̂
    p: np.ndarray  # float64 [T], calibrated p̂ of b̂ = 1
    remaining: np.ndarray  # float64 [T], v̂; NaN where it was not read
    parsed: np.ndarray  # bool [T]
    tokens: np.ndarray  # float64 [T], n_t in the meter's tokenizer (or in the unit of its target)


def costs(found: Estimates, limit: float, *, solved: bool, truncated: bool, cost: Cost = "hard", terminal: Terminal = "C") -> tuple[np.ndarray, np.ndarray]:
    """(c [T + 1], the share of a step's own tokens that `td` subtracts [T]): float64.

    hard: v̂ where b̂ = 1, else C; subtracted is all where both ends are estimates, else nothing. soft: p̂·v̂ + (1 − p̂)·C; subtracted is
    p̂_t. Unparsable is C. c_T is 0 on success, else C; with `terminal: meter` an episode that a budget cut off ends
    with its last estimate, and its last step with Δ = 0.
    """
    remaining = np.nan_to_num(found.remaining, nan=limit)
    held = np.where(found.parsed, found.p if cost == "soft" else found.completable.astype(np.float64), 0.0)
    values = held * remaining + (1.0 - held) * limit
    share = held if cost == "soft" else held * np.append(held[1:], float(solved))
    last = 0.0 if solved else limit
    if not solved and truncated and terminal == "meter":
        last, share = values[-1], np.append(share[:-1], 0.0)
    return np.append(values, last), share


def deltas(c: np.ndarray, share: np.ndarray, tokens: np.ndarray, delta: Delta) -> np.ndarray:
    """Δ_t float64 [T]: what step t took off the cost; `td` less the step's own tokens, as far as `share` (of `costs`) says: zero for a
    perfect meter, in failures too."""
    change = c[:-1] - c[1:]
    return change if delta == "paper" else change - tokens * share


def masses(change: np.ndarray, advantage: float, *, sign_reversal: bool = True) -> np.ndarray:
    """m_t ≥ 0, float64 [T]: progress where the outcome was good, its reverse where it was bad. Without `sign_reversal` (an ablation)
    progress in both."""
    return np.maximum(-change if advantage < 0 and sign_reversal else change, 0.0)


def meter_credit(
    change: np.ndarray, n: np.ndarray, advantage: float, *, rho: float = 0.2, cap: float = 5.0, form: Form = "density", sign_reversal: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """(q, w) of an episode from its Δ alone, float64 [T]; Ã_t = A·w_t. `n` are the generated tokens of each step."""
    q = mixed_share([(1.0, masses(change, advantage, sign_reversal=sign_reversal))], len(change), rho)
    return q, bounded_mean(q, n, cap, form)
