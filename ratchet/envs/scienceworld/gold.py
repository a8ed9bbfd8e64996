"""Gold paths, found by the engine and verified: what does not reach the full score when it is played again is no demonstration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

from ratchet.envs.base import Task
from ratchet.envs.scienceworld.engine import Engine
from ratchet.envs.scienceworld.env import full_score, task_name


def gold_path(engine: Engine, task: Task) -> list[str] | None:
    """Actions that solve `task` in a fresh world, cut where it is solved; None where the engine's path does not reach the full score."""
    name, variation = task_name(task.task_id)
    simplifications = task.env_version.partition("+")[2]
    world = engine.world()
    world.load(name, variation, simplifications, gold=True)
    path = world.gold_path()
    world.load(name, variation, simplifications)
    for done, action in enumerate(path, 1):
        _, points, completed = world.step(action)
        if completed or points < 0:
            return path[:done] if completed and full_score(points) else None
    return None


@contextmanager
def engines(count: int, heap_mb: int) -> Iterator[list[Engine]]:
    """So many JVMs of their own, ended afterwards."""
    started: list[Engine] = []
    try:
        for _ in range(count):
            started.append(Engine(heap_mb))
        yield started
    finally:
        for engine in started:
            engine.shutdown()


def gold_paths(tasks: Sequence[Task], several: Sequence[Engine]) -> list[list[str] | None]:
    """The verified path of each task, or None, found by several engines side by side; which of them finds it makes no difference."""
    free: SimpleQueue[Engine] = SimpleQueue()
    for engine in several:
        free.put(engine)

    def find(task: Task) -> list[str] | None:
        engine = free.get()
        try:
            return gold_path(engine, task)
        finally:
            free.put(engine)

    with ThreadPoolExecutor(len(several)) as threads:
        return list(threads.map(find, tasks))
