"""What the conformance tests share: the environments they run over, prepared once, and ways to play them."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ratchet.envs.base import Environment, Task, Turn
from ratchet.envs.benchmarks import Benchmark, benchmark, look_in
from ratchet.envs.pool import EnvPool, Failure
from ratchet.policies.random_valid import RandomPolicy
from ratchet.rendering import render_params
from ratchet.settings import parse
from ratchet.yaml_files import read_yaml
from tests.envs.tutorial import NAME, write_module

CHECKOUT = Path(__file__).parents[2]
COUNTS = {"train": 8, "seen": 2, "select": 4, "confirm": 4, "test": 4}


@dataclass(frozen=True)
class Case:
    """One environment. `needs` is a package without which its tests are skipped; `sets` are options that keep it small."""

    name: str
    needs: str | None = None
    sets: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=lambda: COUNTS, compare=False)
    admits_all_gold: bool = True  # whether each action of its expert is among the admissible ones
    limit_s: float = 4.0  # seconds in which a step surely ends; so long the test of a worker that hangs waits
    episodes: tuple[int, int] = (60, 120)  # to warm up, and to watch the memory over
    steps: int = 8  # of an episode that is compared

    @property
    def id(self) -> str:
        return self.name.rpartition(".")[2]


CASES = [
    Case("alfworld"),
    Case("ratchet.envs.textworld_express:TextWorldExpress", "textworld_express", admits_all_gold=False, episodes=(30, 60)),
    Case(
        "scienceworld",
        "scienceworld",
        ("env.options.tasks=[lifespan-longest-lived, find-non-living-thing]",),
        {"train": 4, "seen": 2, "select": 2, "confirm": 2, "test": 2},
        admits_all_gold=False,
        limit_s=12.0,
        steps=3,  # listing what is admissible takes most of a step
        episodes=(4, 4),  # its own test watches the memory over more, without those lists
    ),
    Case("proving-ground"),
    Case(NAME),  # the one that docs/environments.md writes
]


@dataclass
class Prepared:
    """An environment whose tasks are there."""

    case: Case
    one: Benchmark
    settings: Any  # the env section
    folder: Path
    tasks: dict[str, list[Task]]

    def pool(self, *splits: str, workers: int = 1, limit_s: float = 60.0) -> EnvPool:
        return EnvPool(self.one.factory, self.arguments(*splits), workers, limit_s, admissible=True)

    def arguments(self, *splits: str) -> dict[str, Any]:
        return self.one.arguments(self.folder, self.settings, list(splits or ("train",)))

    def environment(self) -> Environment:
        """One in this process."""
        module, _, name = self.one.factory.partition(":")
        return getattr(importlib.import_module(module), name)(**self.arguments())


@cache
def _scratch() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="ratchet-conformance-")


@cache
def prepared(case: Case) -> Prepared:
    """Skips where the package that the case needs is not installed."""
    if case.needs is not None and find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed")
    root = Path(_scratch().name)
    if case.name == NAME:
        write_module(root)
        look_in(root)
    folder = root / case.id.replace(":", "-")
    settings = settings_of(case)
    one = benchmark(case.name)
    return Prepared(case, one, settings, folder, prepare(one, settings, folder, case))


def settings_of(case: Case) -> Any:
    return parse(render_params(read_yaml(CHECKOUT / "params.yaml"), {}, [f"env.name={case.name}", *case.sets])).env


def prepare(one: Benchmark, settings: Any, folder: Path, case: Case) -> dict[str, list[Task]]:
    folder.mkdir()
    return one.prepare(folder, settings, case.counts, 1)


def walk(pool: EnvPool, tasks: list[Task], steps: int, seed: int = 0) -> list[list[Turn]]:
    """All turns of random episodes, one a task, in rows 0, 1, …"""
    players = [RandomPolicy(seed, task.task_id) for task in tasks]
    rows = list(range(len(tasks)))
    turns = [[_turn(one)] for one in pool.reset(rows, tasks)]
    for _ in range(steps):
        rows = [row for row in rows if not turns[row][-1].done]
        answers = pool.step(rows, [players[row].act(turns[row][-1])[1] for row in rows])
        for row, answer in zip(rows, answers, strict=True):
            turns[row].append(_turn(answer))
    return turns


def _turn(answer: Turn | Failure) -> Turn:
    assert isinstance(answer, Turn), answer
    return answer


def resident_mb(pid: int) -> float:
    """Memory of one process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
