"""ScienceWorld (Wang et al. 2022) as a benchmark of the pipeline: 30 tasks, 7207 variations, the official split."""

from __future__ import annotations

import random
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ratchet.envs.base import Expert, Task
from ratchet.envs.scienceworld.engine import ELECTRICAL, Engine
from ratchet.envs.scienceworld.env import NAME, version_of
from ratchet.envs.scienceworld.expert import GOLD_FILE, ScienceworldExpert, read_paths
from ratchet.envs.scienceworld.gold import engines, gold_paths
from ratchet.errors import RatchetError
from ratchet.files import write_json
from ratchet.section import Section

WITH_PATHS = ("train", "seen")  # the splits that the expert plays

Simplification = Literal["easy", "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction"]


class Scienceworld:
    """Which tasks, how simplified, and in how much memory. A variation is a world of its own, and its own cluster."""

    class Options(Section):
        tasks: list[str] = Field(["*"], min_length=1, description="patterns of task names, such as find-*; a task that any of them fits is played")
        simplifications: list[Simplification] = Field(
            ["easy"], description="the package's simplifications; easy alone stands for what it calls so, [] for none"
        )
        heap_mb: int = Field(
            512, ge=128, description="MiB of heap that a worker's JVM may take, from 128; it needs 50 and 3 for each episode in progress"
        )

        @model_validator(mode="after")
        def _each_once(self) -> Scienceworld.Options:
            if "easy" in self.simplifications and len(self.simplifications) > 1:
                raise ValueError(f"simplifications: easy stands alone; leave out the others, or name all but easy in {self.simplifications}")
            if len(set(self.simplifications)) < len(self.simplifications):
                raise ValueError(f"simplifications: {self.simplifications} names one twice; name it once")
            return self

    factory = "ratchet.envs.scienceworld.env:make"

    def prepare(self, folder: Path, settings: Any, counts: Mapping[str, int], seed: int) -> dict[str, list[Task]]:
        """Writes `gold.json`: the verified gold paths of train and seen. A training task whose path fails is left out, and named there.

        Raises RatchetError where the package is missing, no task fits the patterns, or more are asked for than there are.
        """
        options = settings.options
        with engines(settings.workers, options.heap_mb) as several:
            tasks = split_tasks(several[0], options, counts)
            wanted = [task for split in WITH_PATHS for task in tasks.get(split, [])]
            paths = dict(zip(wanted, gold_paths(wanted, several), strict=True))
        failed = sorted(task.task_id for task, path in paths.items() if path is None)
        write_json(folder / GOLD_FILE, {"paths": {task.task_id: path for task, path in paths.items() if path is not None}, "failed": failed})
        return {split: [task for task in chosen if paths.get(task, ()) is not None] for split, chosen in tasks.items()}

    def arguments(self, folder: Path, settings: Any, splits: list[str]) -> dict[str, Any]:
        """Keyword arguments of `make`."""
        return {"heap_mb": settings.options.heap_mb, "simplifications": settings.options.simplifications}

    def expert(self, folder: Path) -> Expert:
        """The gold paths of `folder`, with thoughts where they can be derived."""
        return ScienceworldExpert(read_paths(folder))


def chosen_tasks(names: tuple[str, ...], options: Scienceworld.Options) -> list[str]:
    """The names that any of the patterns fits, in the package's order. Raises RatchetError for a pattern that fits none."""
    for pattern in options.tasks:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise RatchetError(f"env.options.tasks: {pattern!r} fits no task of ScienceWorld; they are {', '.join(names)}")
    chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in options.tasks)]
    electrical = [name for name in chosen if name.startswith(ELECTRICAL)]
    if electrical and "noElectricalAction" in options.simplifications:
        raise RatchetError(f"env.options.simplifications: noElectricalAction leaves {electrical[0]} unsolvable; leave out one of the two")
    return chosen


def split_tasks(engine: Engine, options: Scienceworld.Options, counts: Mapping[str, int]) -> dict[str, list[Task]]:
    """The first `counts` tasks of each split, task by task in turn, so that any first part of them is balanced.

    train and seen share the official train, select and confirm the official dev (every second variation each); test is the
    official test. The order of a task's variations is a fixed shuffle: neighbours resemble each other.
    """
    version = version_of(options.simplifications)
    by_task: dict[str, dict[str, list[int]]] = {}
    for name in chosen_tasks(engine.tasks, options):
        official = {part: random.Random(f"{name} {part}").sample(found, len(found)) for part, found in engine.variations(name).items()}
        by_task[name] = {
            "train": official["train"],
            "seen": official["train"][::-1],
            "select": official["dev"][0::2],
            "confirm": official["dev"][1::2],
            "test": official["test"],
        }
    tasks: dict[str, list[Task]] = {}
    for split, count in counts.items():
        turns = zip_longest(*([(name, one) for one in parts[split]] for name, parts in by_task.items()))
        found = [pair for turn in turns for pair in turn if pair is not None]
        if count > len(found):
            raise RatchetError(f"prepare.games.{split}: {count} is above the {len(found)} variations that these tasks have for it; lower it")
        tasks[split] = [Task(NAME, version, f"{name}/{one}", split, stratum=name, cluster=f"{name}/{one}") for name, one in found[:count]]
    twice = {task.task_id for task in tasks.get("train", [])} & {task.task_id for task in tasks.get("seen", [])}
    if twice:
        raise RatchetError(f"prepare.games: train and seen share the official training variations, {len(twice)} would be in both; lower one of them")
    return tasks
