"""ScienceWorld's own engine in one JVM a process, and several worlds in it at once.

The engine keeps three things for the whole JVM that belong to one world: the random numbers, the counter of object ids and the
simplifications. Played in turns, worlds would disturb each other through them (a plant is pollinated, an animal wanders off), so
each world keeps its own and they are exchanged when another world is played. Nothing runs in threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ratchet.envs.jvm import call, launch
from ratchet.errors import RatchetError

MISSING = "ScienceWorld is not installed; `pip install 'ratchet-agents[scienceworld]'` brings it and a Java runtime"
EASY = "easy"
ELECTRICAL = ("power-component", "test-conductivity")
EASY_WITH_ELECTRICITY = "teleportAction,selfWateringFlowerPots,openContainers,openDoors"  # the engine refuses `easy` for these
SIMPLIFICATIONS = (EASY, "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction")


@cache
def package_version() -> str:
    """Version of the installed scienceworld. Raises RatchetError where there is none."""
    try:
        return version("scienceworld")
    except PackageNotFoundError:
        raise RatchetError(MISSING) from None


def simplifications_for(task: str, names: str) -> str:
    """What the engine is given for `task`: `names`, comma-separated, but for `easy` in tasks that need electricity."""
    return EASY_WITH_ELECTRICITY if names == EASY and task.startswith(ELECTRICAL) else names


class Engine:
    """One JVM with at most `heap_mb` MiB of heap; `world()` makes a world in it."""

    def __init__(self, heap_mb: int) -> None:
        """Raises RatchetError where the package or Java is missing."""
        spec = find_spec("scienceworld")
        if spec is None or spec.origin is None:
            raise RatchetError(MISSING)
        self.version = package_version()
        self.gateway = launch(Path(spec.origin).parent / "scienceworld.jar", heap_mb)
        self.active: World | None = None
        self._ids = self._singleton("util.UniqueIdentifier")
        self._simplifier = self._singleton("main.scala.scienceworld.runtime.SimplifierProcessor")
        self._random = self._singleton("scala.util.Random")
        self._generator = self._class("scala.util.Random").getDeclaredField("self")
        self._generator.setAccessible(True)
        self._aside = self.gateway.jvm.java.util.Random(0)
        self._simplified: str | None = None
        first = self.gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
        self.task_maker = first.taskMaker()  # 10 MB, the same for all: it lists every variation of every task
        self.tasks: tuple[str, ...] = tuple(first.getTaskNames())
        self._lists = first

    def world(self) -> World:
        """A new world, without a task yet."""
        return World(self)

    def variations(self, task: str) -> dict[str, list[int]]:
        """The official split of a task's variations: `train`, `dev`, `test`."""
        lists = self._lists
        call(getattr(lists, "taskStr_$eq"), task)
        return {
            "train": list(call(lists.getVariationsTrain)),
            "dev": list(call(lists.getVariationsDev)),
            "test": list(call(lists.getVariationsTest)),
        }

    def shutdown(self) -> None:
        """Ends the JVM."""
        self.gateway.shutdown()
        self.gateway.java_process.stdin.close()  # it ends when nobody can write to it any more
        self.gateway.java_process.wait(10)

    def activate(self, world: World) -> None:
        """Gives `world` the engine: its random numbers, its ids, its simplifications."""
        if self.active is world:
            return
        if self.active is not None:
            self.active.ids = call(self._ids.count)
        call(getattr(self._ids, "count_$eq"), world.ids)
        call(self._generator.set, self._random, world.random)
        if self._simplified != world.simplified:
            call(self._simplifier.parseSimplificationStr, world.simplified)
            self._simplified = world.simplified
        self.active = world

    @contextmanager
    def without_a_trace(self) -> Iterator[None]:
        """What is done in here draws from random numbers of its own, always the same, and uses up no ids."""
        ids, active = call(self._ids.count), self.active
        call(self._aside.setSeed, 0)
        call(self._generator.set, self._random, self._aside)
        yield
        call(getattr(self._ids, "count_$eq"), ids)
        if active is not None:
            call(self._generator.set, self._random, active.random)

    def loaded(self, simplified: str) -> None:
        """A load has set the simplifications itself."""
        self._simplified = simplified

    def _class(self, name: str) -> Any:
        return self.gateway.jvm.java.lang.Class.forName(name)

    def _singleton(self, name: str) -> Any:
        return self._class(f"{name}$").getField("MODULE$").get(None)


class World:
    """One episode's world; `load` starts another one in its place."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.random = engine.gateway.jvm.java.util.Random(0)  # seeded by each load
        self.ids = 0
        self.simplified = ""
        self._interface = engine.gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
        self._share_lists()

    def load(self, task: str, variation: int, simplifications: str, *, gold: bool = False) -> None:
        """Starts a variation of a task; with `gold` the engine looks for a gold path first, which takes longer.

        Raises RatchetError for what the engine does not have.
        """
        self.engine.activate(self)
        error = call(self._interface.load, task, variation, simplifications_for(task, simplifications), gold)
        self._share_lists()
        if error:
            raise RatchetError(f"ScienceWorld does not take {task}/{variation} with the simplifications {simplifications!r}: {error}")
        self.simplified = call(call(call(self._interface.agentInterface).get).simplificationStr)
        self.engine.loaded(self.simplified)

    def description(self) -> str:
        return call(self._interface.getTaskDescription)

    def look(self) -> str:
        """What is around, without taking time."""
        return call(self._interface.freeActionLook)

    def step(self, action: str) -> tuple[str, float, bool]:
        """(observation, score from -1 to 1, whether the task is over)."""
        self.engine.activate(self)
        interface = self._interface
        return call(interface.step, action), float(call(interface.getScore)), bool(call(interface.getCompleted))

    def valid_actions(self) -> tuple[str, ...]:
        """All that would be understood now, sorted. Slow: it takes longer than ten steps, and changes nothing.

        The engine draws by which of several names to call a thing: from random numbers that are not the world's, or whoever asks
        for the list would play another world than who does not.
        """
        self.engine.activate(self)
        with self.engine.without_a_trace():
            return tuple(call(self._interface.getValidActionObjectCombinations))

    def gold_path(self) -> list[str]:
        """What the load with `gold` found; it need not reach the goal where the task was simplified."""
        return list(call(self._interface.getGoldActionSequence))

    def _share_lists(self) -> None:
        """Each interface, and each load, makes the list of all variations anew; one is enough."""
        call(getattr(self._interface, "taskMaker_$eq"), self.engine.task_maker)
