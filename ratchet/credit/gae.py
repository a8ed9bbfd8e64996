"""Advantages from a critic's values (methods §5): GAE (Schulman et al. 2016), and what it is compared with.

Legend: T steps of one episode. `value` [T + 1]: V before each action, and behind the last one what a truncated end bootstraps from.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Kind = Literal["gae", "q_minus_v", "td", "potential", "gae_aux"]


def td_error(reward: np.ndarray, value: np.ndarray, terminated: bool, gamma: float) -> np.ndarray:
    """δ_t = r_t + γ·V_{t+1} − V_t, float64 [T]; behind a terminated end there is nothing to come."""
    value = np.array(value, np.float64)
    if terminated:
        value[-1] = 0.0
    return np.asarray(reward, np.float64) + gamma * value[1:] - value[:-1]


def gae(
    reward: np.ndarray, value: np.ndarray, terminated: bool, gamma: float = 0.99, lam: float = 0.95, trace: np.ndarray | None = None
) -> np.ndarray:
    """A_t = δ_t + γλ·A_{t+1}, float64 [T]; the reward is the environment's alone.

    `trace` [T] in [0, 1] are truncated importance ratios of the actions, for episodes of an older policy: what follows an action that
    the policy would not take counts less (Munos et al. 2016, Retrace). None = the policy's own episodes.
    """
    delta = td_error(reward, value, terminated, gamma)
    out, following = np.zeros(len(delta)), 0.0
    for t in range(len(delta) - 1, -1, -1):
        ahead = 1.0 if trace is None or t + 1 == len(delta) else float(trace[t + 1])
        out[t] = following = delta[t] + gamma * lam * ahead * following
    return out


def advantage(
    kind: Kind,
    *,
    reward: np.ndarray,
    aux: np.ndarray,
    value: np.ndarray,
    q: np.ndarray,
    terminated: bool,
    gamma: float,
    lam: float,
    trace: np.ndarray | None = None,
) -> np.ndarray:
    """The advantage of each step, float64 [T].

    `gae` is the method; the others are ablations: `q_minus_v`; `td`, one step, which is also the reward shaped by the potential V;
    `potential`, what such shaped rewards sum to from here on (λ = 1); `gae_aux`, in which the retrospective rewards `aux` enter,
    as they never do elsewhere.
    """
    if kind == "q_minus_v":
        return np.asarray(q, np.float64) - np.asarray(value, np.float64)[:-1]
    if kind == "td":
        return td_error(reward, value, terminated, gamma)
    if kind == "gae_aux":
        reward = np.asarray(reward, np.float64) + aux
    return gae(reward, value, terminated, gamma, 1.0 if kind == "potential" else lam, trace)
