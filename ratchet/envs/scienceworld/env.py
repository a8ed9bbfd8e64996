"""ScienceWorld behind the one environment interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import overload

from ratchet.envs.base import Task, Turn
from ratchet.envs.jvm import one_line
from ratchet.envs.scienceworld.engine import Engine, World, package_version
from ratchet.errors import RatchetError

NAME = "scienceworld"
NOT_UNDERSTOOD = ("No known action matches that input.", "Unknown action.", "It's not clear how to")
"""How the engine begins where an action did nothing. `Ambiguous request` is not among them: it asks which of several things is
meant, and the number that answers is an action."""


def make(heap_mb: int, simplifications: list[str]) -> ScienceworldEnv:
    """One environment; all of a process share one JVM."""
    return ScienceworldEnv(engine_of_process(heap_mb), simplifications)


@cache
def engine_of_process(heap_mb: int) -> Engine:
    """This process's JVM."""
    return Engine(heap_mb)


def version_of(simplifications: Sequence[str]) -> str:
    """`env_version` of tasks played with these simplifications: another set is another environment."""
    return "+".join([package_version(), *([",".join(simplifications)] if simplifications else [])])


def task_name(task_id: str) -> tuple[str, int]:
    """(task, variation) of `find-plant/17`. Raises RatchetError for anything else."""
    name, _, variation = task_id.rpartition("/")
    if not name or not variation.isdecimal():
        raise RatchetError(f"{task_id!r} is no task of ScienceWorld; they are called TASK/VARIATION, such as find-plant/17")
    return name, int(variation)


def full_score(points: float) -> bool:
    """Whether a score is the 100 of the package, which rounds."""
    return round(100 * points) >= 100


def understood(observation: str) -> bool:
    """Whether the engine took the action, by what it said."""
    return not observation.startswith(NOT_UNDERSTOOD)


class ValidActions(Sequence[str]):
    """The valid actions of one moment, computed when first asked for, since that takes longer than ten steps."""

    def __init__(self, env: ScienceworldEnv) -> None:
        self._env, self._moment = env, env.moment
        self._actions: tuple[str, ...] | None = None

    def _list(self) -> tuple[str, ...]:
        if self._actions is None:
            if self._env.moment != self._moment:
                raise RatchetError("the valid actions of an earlier turn cannot be listed any more; ask before the next step")
            self._actions = self._env.valid_actions()
        return self._actions

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self._list()[index]

    def __len__(self) -> int:
        return len(self._list())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._list() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._list())


class ScienceworldEnv:
    """Plays any variation of any task. The first observation is the task's description and what is around.

    An episode ends when the engine says so or the score falls below zero, which is a failure. `score` is the engine's last one, not
    its highest; `solved` asks for a completed task and the full score. A task's `seed` has no effect: a variation has its own.
    """

    name = NAME

    def __init__(self, engine: Engine, simplifications: Sequence[str] = ("easy",)) -> None:
        self.engine = engine
        self.simplifications = ",".join(simplifications)
        self.version = version_of(simplifications)
        self.moment = 0  # counts what changes the world
        self._world: World | None = None
        self._last: Turn | None = None

    def reset(self, task: Task) -> Turn:
        """Starts `task`. Raises RatchetError for one that is not of this benchmark or version."""
        if (task.env, task.env_version) != (self.name, self.version):
            raise RatchetError(f"task {task.task_id!r} is of {task.env} {task.env_version}, not of {self.name} {self.version}; make it again")
        name, variation = task_name(task.task_id)
        if self._world is None:
            self._world = self.engine.world()
        self._last = None
        self.moment += 1
        self._world.load(name, variation, self.simplifications)
        text = f"{self._world.description()}\n\n{self._world.look().strip()}"
        self._last = Turn(text, ValidActions(self))
        return self._last

    def step(self, action: str) -> Turn:
        """Plays one action; what is not understood does nothing, and the engine says so."""
        last = self._last
        if self._world is None or last is None:
            raise RatchetError("a ScienceWorld episode was stepped before reset; call reset(task) first")
        if last.done:
            self._last = replace(last, reward=0.0, valid=False)
            return self._last
        self.moment += 1
        observation, points, completed = self._world.step(one_line(action))
        done = completed or points < 0
        score = max(0.0, points)
        self._last = Turn(
            observation.strip(),
            () if done else ValidActions(self),
            reward=score - last.score,
            score=score,
            solved=completed and full_score(points),
            done=done,
            valid=understood(observation),
        )
        return self._last

    def valid_actions(self) -> tuple[str, ...]:
        """All that would be understood now, sorted; slow."""
        if self._world is None:
            raise RatchetError("there is no ScienceWorld episode; call reset(task) first")
        return self._world.valid_actions()

    def close(self) -> None:
        """Lets the world go; the JVM ends with its process."""
        self._world = self._last = None
