"""Scripted policies of the proving ground: one that is always right, and knobs for how often it errs and how much it talks."""

from __future__ import annotations

import re
from itertools import pairwise, permutations

from ratchet.envs.base import Task, Turn
from ratchet.envs.proving_ground.rules import DO_NOTHING, FILLER, FRAGILE, PLAIN, SOLD
from ratchet.policies.random_valid import RandomPolicy
from ratchet.policies.scripted import Player
from ratchet.rollout.noise import episode_key, uniforms

_ORDER = re.compile(r"from (\w+) send (\w+) \.")
_THING = re.compile(rf"(\w+) (\w+) ({PLAIN}|{FRAGILE}|{SOLD}) \.")
_PLACE = re.compile(r"you are in (\w+) \.")
_HOLD = re.compile(r"you hold (\w+) \.")
_DONE = re.compile(r"(\w+) is (wrapped|sent|back) \.")


class Clerk:
    """The expert: reads orders and things in the first observation, and then what its actions bring about.

    It takes the fewest steps there are, and recovers from what somebody else did, as far as that can be undone. With `thoughts` it
    first says what it goes by, in the words in which that was told.
    """

    needs_admissible = False

    def __init__(self, thoughts: bool = True) -> None:
        self.thoughts = thoughts

    def reset(self, task: Task, turn: Turn) -> None:
        things = _THING.findall(turn.observation)
        self.home = {name: room for name, room, _ in things}
        self.state = {name: state for name, _, state in things}
        self.orders = {name: room for room, name in _ORDER.findall(turn.observation)}
        self.left = {name: room for name, room in self.orders.items() if self.state[name] != SOLD}
        self.fragile = {name for name in self.left if self.state[name] == FRAGILE}
        self.held: str | None = None

    def act(self, turn: Turn) -> tuple[str, str]:
        self._read(turn.observation)
        about, action = self._next()
        return self._thought(about) if self.thoughts else "", action

    def _thought(self, about: str) -> str:
        if about not in self.left and self.state[about] != SOLD and self.held is None:
            return f"{about} is sent"
        if about == self.held and about in self.left and about not in self.fragile:
            return f"from {self.left[about]} send {about}"
        return f"{about} {self.home[about]} {self.state[about]}"

    def _read(self, text: str) -> None:
        if place := _PLACE.search(text):
            self.room = place[1]
        elif held := _HOLD.match(text):
            self.held = held[1]
        elif done := _DONE.match(text):
            name, what = done.groups()
            if what == "wrapped":
                self.fragile.discard(name)
                return
            self.held = None
            if what == "sent":
                self.left.pop(name, None)

    def _next(self) -> tuple[str, str]:
        """(the item that it is about, the action)."""
        held = self.held
        if held is None:
            if not self.left:
                return next(reversed(self.orders)), DO_NOTHING
            name = self._shortest()[0]
            return name, f"take {name}" if self.room == self.home[name] else f"go {self.home[name]}"
        if held not in self.left:  # taken by somebody else
            return held, f"return {held}" if self.room == self.home[held] else f"go {self.home[held]}"
        if held in self.fragile:
            return held, f"wrap {held}"
        return held, f"send {held}" if self.room == self.left[held] else f"go {self.left[held]}"

    def _shortest(self) -> tuple[str, ...]:
        """The order of what is left in which one walks least; of equals the first as ordered."""

        def walks(names: tuple[str, ...]) -> int:
            way = [self.room, *(room for name in names for room in (self.home[name], self.left[name]))]
            return sum(a != b for a, b in pairwise(way))

        return min(permutations(self.left), key=walks)


class Skilled:
    """Acts as `player` with probability `skill`, else takes any admissible action. It needs the admissible actions."""

    def __init__(self, player: Player, skill: float, seed: int, episode_id: str) -> None:
        self.player, self.skill = player, skill
        self.random = RandomPolicy(seed, episode_id)
        self.key, self.t = episode_key(seed, episode_id, "skill"), 0

    def reset(self, task: Task, turn: Turn) -> None:
        self.player.reset(task, turn)
        self.random.reset(task, turn)
        self.t = 0

    def act(self, turn: Turn) -> tuple[str, str]:
        right, wrong = self.player.act(turn), self.random.act(turn)
        self.t += 1
        return right if float(uniforms(self.key, self.t - 1)) < self.skill else wrong


class Verbose:
    """Writes from 0 to 2·`words` words that say nothing before each action of `player`: as many more tokens, and no other outcome."""

    def __init__(self, player: Player, words: int) -> None:
        self.player, self.words = player, words
        self.needs_admissible = getattr(player, "needs_admissible", True)

    def reset(self, task: Task, turn: Turn) -> None:
        self.player.reset(task, turn)
        self.key, self.t = episode_key(0, task.task_id, "verbosity"), 0

    def act(self, turn: Turn) -> tuple[str, str]:
        thought, action = self.player.act(turn)
        draws = uniforms(self.key, range(self.t, self.t + 1 + 2 * self.words))
        self.t += len(draws)
        count = int(draws[0] * (2 * self.words + 1))
        filler = " ".join(FILLER[int(draw * len(FILLER))] for draw in draws[1 : 1 + count])
        return " ".join(part for part in (thought, filler) if part), action
