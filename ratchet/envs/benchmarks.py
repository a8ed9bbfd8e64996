"""What a benchmark brings besides its engine: tasks, an expert, and where its environment is built.

One entry in `BENCHMARKS` is all that a new benchmark adds outside its own module.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ratchet.envs.base import Expert, Task
from ratchet.envs.pool import EnvPool
from ratchet.errors import RatchetError


class Benchmark(Protocol):
    factory: str

    def prepare(self, folder: Path, settings: Any, counts: Mapping[str, int], seed: int) -> dict[str, list[Task]]:
        """Writes what the environment plays into `folder` and returns the tasks of each split."""
        ...

    def arguments(self, folder: Path, settings: Any, splits: list[str]) -> dict[str, Any]:
        """Keyword arguments of `factory` in a worker that plays tasks of `splits`."""
        ...

    def expert(self) -> Expert: ...


BENCHMARKS = {"alfworld": "ratchet.envs.alfworld.benchmark:Alfworld"}


def benchmark(name: str) -> Benchmark:
    """Raises RatchetError for an unknown name, with the nearest one."""
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1, cutoff=0.0)[0]
        raise RatchetError(f"env.name: no environment {name!r}; did you mean {near!r}? (known: {', '.join(sorted(BENCHMARKS))})")
    module, _, attribute = BENCHMARKS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()


def open_pool(folder: Path, settings: Any, splits: list[str], *, admissible: bool) -> EnvPool:
    """The process pool for tasks of `splits`; `settings` is the `env` section."""
    one = benchmark(settings.name)
    return EnvPool(one.factory, one.arguments(folder, settings, splits), settings.workers, settings.step_timeout_s, admissible)
