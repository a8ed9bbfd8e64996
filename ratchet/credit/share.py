"""Shares: how an outcome's advantage is spread over an episode's steps without changing its sign or its size (methods §3, §6).

Sources (a meter, a critic) say how much each step did for the outcome, as masses ≥ 0. Masses become a share q that sums to 1, and the
bounded mean turns shares into weights whose token-weighted mean is exactly 1, so that a weighted policy gradient is as long as a plain one.

Legend: T steps of an episode · n [T] generated tokens of each · N = Σ n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

Form = Literal["density", "mass"]
NOTHING = 1e-200  # of the largest share: what λ could not scale up within float64


def mixed_share(sources: Sequence[tuple[float, np.ndarray]], steps: int, rho: float) -> np.ndarray:
    """q = ρ/T + (1 − ρ)·Σ_j β_j·s_j, float64 [T]; `sources` are (β_j, masses [T] ≥ 0), s_j = masses / their sum.

    A source without mass is dropped, and the β of the others are scaled to sum to 1; where none has any, q = 1/T. With one source this
    is DeltaTTG's share; with a meter at β and a critic at 1 − β the mixed one.
    """
    spoken = [(weight, np.asarray(mass, np.float64)) for weight, mass in sources if weight > 0 and np.sum(mass) > 0]
    if not spoken:
        return np.full(steps, 1.0 / steps)
    total = sum(weight for weight, _ in spoken)
    mixed = sum(weight / total * (mass / mass.sum()) for weight, mass in spoken)
    return rho / steps + (1.0 - rho) * mixed


def beta_of(meter: float | None, critic: float | None) -> float:
    """The meter's β from both sources' balanced accuracies about the direction of held-out steps: in proportion to what each is above
    chance [ours]. One half where that of either is not known, or neither is above chance."""
    above = [0.0 if one is None else max(one - 0.5, 0.0) for one in (meter, critic)]
    if meter is None or critic is None or not sum(above):
        return 0.5
    return above[0] / sum(above)


def bounded_mean(q: ArrayLike, n: ArrayLike, cap: float, form: Form = "density") -> np.ndarray:
    """BM(q; n): w_t = min(M, λ·q_t) with the one λ for which Σ n_t·w_t = N; float64 [T].

    `cap` is M ≥ 1. `form: mass` reads q as a step's mass, spread over its tokens: q_t/n_t takes the place of q_t. Steps without a token
    are left out of the sums and get 1. Where the steps with q > 0 cannot carry N even at M, they get M and the others share what is left.
    """
    share, tokens = np.asarray(q, np.float64), np.asarray(n, np.float64)
    weights = np.ones(len(share))
    spoke = tokens > 0
    if spoke.sum() < 2 or cap <= 1:
        return weights
    own, size = share[spoke], tokens[spoke]
    weights[spoke] = _bounded(own / size if form == "mass" else own, size, cap)
    return weights


def _bounded(q: np.ndarray, n: np.ndarray, cap: float) -> np.ndarray:
    """Where every n > 0. With q sorted downwards, those at the cap come first: the first count of them for which the next is below."""
    total = n.sum()
    q = q / q.max() if q.max() > 0 else q  # λ is of any size
    positive = q > NOTHING
    q = np.where(positive, q, 0.0)
    carried = cap * n[positive].sum()
    if carried <= total:
        left = n[~positive].sum()
        return np.where(positive, cap, (total - carried) / left if left > 0 else cap)
    order = np.argsort(-q, kind="stable")
    sorted_q, sorted_n = q[order], n[order]
    capped = cap * np.concatenate([[0.0], np.cumsum(sorted_n)])[:-1]  # mass of the steps before, if all of them are at the cap
    rest = np.cumsum((sorted_n * sorted_q)[::-1])[::-1]  # Σ n·q from here on
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (total - capped) / rest
        first = int(np.argmax(scale * sorted_q <= cap))
    return np.minimum(cap, scale[first] * q)
