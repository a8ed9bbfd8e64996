"""Panels: fixed lists of tasks with a hash. Two results are compared only when the hashes agree.

`select` chooses checkpoint and round, `confirm` decides promotion, `test` is touched once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ratchet.envs.base import Task
from ratchet.errors import RatchetError
from ratchet.files import read_json, sha256_json, write_json

TASK_FIELDS = tuple(field.name for field in fields(Task))


@dataclass(frozen=True, slots=True)
class Panel:
    """`tasks` in the order they are played; `hash` covers (env, env_version, task_id, seed) of each, in any order."""

    name: str
    hash: str
    tasks: list[Task]


def panel_hash(tasks: Sequence[Task]) -> str:
    """SHA-256 over the sorted (env, env_version, task_id, seed): the order of play changes no result, so not the hash either."""
    return sha256_json(sorted([task.env, task.env_version, task.task_id, task.seed] for task in tasks))


def make_panel(name: str, tasks: Sequence[Task]) -> Panel:
    """Raises RatchetError for no tasks and for a task that is listed twice, which would count double."""
    if not tasks:
        raise RatchetError(f"panel {name}: holds no tasks; raise prepare.games.{name} in params.yaml")
    keys = [(task.env, task.env_version, task.task_id, task.seed) for task in tasks]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RatchetError(f"panel {name}: task {twice[2]} (seed {twice[3]}) is listed twice; list it once")
    return Panel(name, panel_hash(tasks), list(tasks))


def write_panel(path: Path, panel: Panel) -> None:
    """Writes `{"name", "hash", "tasks": [{env, env_version, task_id, split, stratum, cluster, seed}]}`."""
    write_json(path, {"name": panel.name, "hash": panel.hash, "tasks": [asdict(task) for task in panel.tasks]})


def read_panel(path: Path) -> Panel:
    """Raises RatchetError where the file is missing, damaged, or its tasks are not those its hash was made of."""
    value = read_json(path)
    way_out = "run the prepare stage again (`dvc repro prepare`)"
    if not isinstance(value, dict) or not {"name", "hash", "tasks"} <= value.keys() or not isinstance(value["tasks"], list):
        raise RatchetError(f"{path}: is no panel (name, hash and tasks are expected); {way_out}")
    tasks = [_task(path, i, item, way_out) for i, item in enumerate(value["tasks"])]
    panel = make_panel(str(value["name"]), tasks)
    if panel.hash != value["hash"]:
        raise RatchetError(
            f"{path}: the tasks were changed after the panel was made (hash {panel.hash[:12]}, not {value['hash'][:12]}); {way_out}"
        )
    return panel


def _task(path: Path, place: int, item: Any, way_out: str) -> Task:
    if not isinstance(item, dict) or set(item) != set(TASK_FIELDS):
        raise RatchetError(f"{path}: tasks[{place}] is no task ({', '.join(TASK_FIELDS)} are expected); {way_out}")
    return Task(**item)


def require_same(a: Panel, b: Panel) -> None:
    """Raises RatchetError unless both panels are the same list of tasks."""
    if a.hash != b.hash:
        raise RatchetError(
            f"panel {a.name} ({a.hash[:12]}) and panel {b.name} ({b.hash[:12]}) hold different tasks, so results on them cannot be "
            "compared; evaluate both versions on one panel"
        )
