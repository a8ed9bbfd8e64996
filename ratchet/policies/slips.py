"""Demonstrations of recovery: now and then the player names the wrong thing, and then goes on from what came of it.

Noise injected into the demonstrator's actions shows the learner the states that its own mistakes lead to, and what to do
there (Laskey et al. 2017, DART). A slip is never imitated: its step is marked, and its tokens carry no loss.
"""

from __future__ import annotations

import re

from ratchet.envs.base import Task, Turn
from ratchet.episodes.tokenizer import ENTITY
from ratchet.policies.scripted import Player
from ratchet.rollout.noise import episode_key, uniforms

SAME_KIND = 0.6  # share of slips that take another number of the same kind; the others take another thing in sight
NUMBERS = 4


class SlippingPlayer:
    """Plays as `player`, but at a share `rate` of its steps the action (and its thought) name another thing."""

    def __init__(self, player: Player, rate: float, seed: int, episode_id: str) -> None:
        self.player, self.rate = player, rate
        self.key = episode_key(seed, episode_id, "slip")
        self.t = 0
        self.slipped = False

    def reset(self, task: Task, turn: Turn) -> None:
        self.player.reset(task, turn)

    def act(self, turn: Turn) -> tuple[str, str]:
        thought, action = self.player.act(turn)
        noise = uniforms(self.key, range(4 * self.t, 4 * self.t + 4))
        self.t += 1
        self.slipped = False
        if noise[0] >= self.rate:
            return thought, action
        wrong = self._wrong(action, turn, noise[1:])
        if wrong is None:
            return thought, action
        self.slipped = True
        right, other = wrong
        swap = re.compile(rf"\b{re.escape(right)}\b")
        return swap.sub(other, thought), swap.sub(other, action)

    def _wrong(self, action: str, turn: Turn, noise: list[float]) -> tuple[str, str] | None:
        """(a name in the action, another name), or None where there is nothing to take wrongly."""
        named = [" ".join(found) for found in ENTITY.findall(action)]
        if not named:
            return None
        right = named[int(noise[0] * len(named))]
        kind, number = right.split(" ")
        if noise[1] < SAME_KIND:
            others = [f"{kind} {n}" for n in range(1, NUMBERS + 1) if str(n) != number]
        else:
            seen = {" ".join(found) for text in turn.admissible for found in ENTITY.findall(text)}
            others = sorted(seen - set(named))
        return (right, others[int(noise[2] * len(others))]) if others else None
