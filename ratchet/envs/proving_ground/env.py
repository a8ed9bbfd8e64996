"""The proving ground behind the one environment interface."""

from __future__ import annotations

import copy

from ratchet.envs.base import Task, Turn
from ratchet.envs.proving_ground.generate import NAME, version_of, world_of
from ratchet.envs.proving_ground.rules import State, World
from ratchet.errors import RatchetError


def make(rooms: int, items: int, noise: int) -> ProvingGroundEnv:
    """Called in a worker."""
    return ProvingGroundEnv(rooms, items, noise)


class ProvingGroundEnv:
    """Plays any task of any house of `rooms` rooms and `items` items. The reward is 1 at the end of a solved task, else 0.

    `world` and `state` are for whoever wants exact values (`exact.solve(env.world)`); a policy never sees them.
    """

    name = NAME

    def __init__(self, rooms: int = 5, items: int = 4, noise: int = 2) -> None:
        self.rooms, self.items, self.noise = rooms, items, noise
        self.version = version_of(rooms, items, noise)
        self.world: World | None = None
        self.state = State(0)
        self._t = 0
        self._last = Turn("", ())

    def reset(self, task: Task) -> Turn:
        """Starts `task`. Raises RatchetError for one that is not of this world or not of this version."""
        if (task.env, task.env_version) != (self.name, self.version):
            raise RatchetError(f"task {task.task_id!r} is of {task.env} {task.env_version}, not of {self.name} {self.version}; make it again")
        self.world = world_of(task.task_id, self.rooms, self.items, self.noise)
        self.state, self._t = self.world.begin, 0
        self._last = Turn(self.world.first(), self.world.admissible(self.state))
        return self._last

    def step(self, action: str) -> Turn:
        """Plays one action; what is not admissible does nothing and says so. Raises RatchetError before the first reset."""
        world = self.world
        if world is None:
            raise RatchetError("an episode of the proving ground was stepped before reset; call reset(task) first")
        if self._last.done:
            self._last = Turn(self._last.observation, (), 0.0, self._last.score, self._last.solved, True, False)
            return self._last
        self._t += 1
        self.state, text, valid = world.act(self.state, action)
        over = self.state.over
        solved = over and world.solved(self.state)
        reward = float(solved)
        said = text if over else world.disturbed(text, self._t)
        self._last = Turn(said, world.admissible(self.state), reward, reward, solved, over, valid)
        return self._last

    def clone(self) -> ProvingGroundEnv:
        """A copy that goes on by itself from here."""
        return copy.copy(self)  # states and turns are never changed, only replaced

    def close(self) -> None:
        """Lets the task go; the environment can be reset again."""
        self.world = None
