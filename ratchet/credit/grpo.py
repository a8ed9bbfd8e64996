"""GRPO's outcome advantage (methods §2): an episode's reward against its group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EPSILON = 1e-6


def group_advantage(rewards: Sequence[float] | np.ndarray) -> np.ndarray:
    """A_i = (R_i − mean) / (std + 1e-6) with the population's std; rewards [G] → float64 [G].

    A group without spread, or of one episode, gives exactly 0.
    """
    values = np.asarray(rewards, np.float64)
    if len(values) < 2 or np.all(values == values[0]):
        return np.zeros(len(values))
    return (values - values.mean()) / (values.std() + EPSILON)


def grpo(rewards: Sequence[float], groups: Sequence[str], n_steps: Sequence[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """One advantage a step for every episode, the same for all of its steps, and which episodes are silent.

    `rewards`, `groups`, `n_steps` [N]: reward, group and number of steps of each episode. Returns ([n_steps_i] arrays, bool [N]);
    silent are the episodes of groups without spread.
    """
    advantage = np.zeros(len(rewards))
    silent = np.zeros(len(rewards), bool)
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    for indices in members.values():
        values = group_advantage([rewards[index] for index in indices])
        advantage[indices] = values
        silent[indices] = not values.any()
    return [np.full(steps, value, np.float32) for steps, value in zip(n_steps, advantage, strict=True)], silent
