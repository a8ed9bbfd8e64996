"""Demonstrations that `ratchet import` made of somebody's chats or trajectories."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.evaluation.panels import read_panel
from ratchet.files import read_json, sha256_files

FOLDER = "imports"
HELD_OUT_PANELS = ("select", "confirm", "test")


def imported(root: Path, name: str, action_format: str, panels: Path) -> tuple[pa.Table, pa.Table, int]:
    """(episodes, steps, left out): without the episodes of tasks that a panel of `panels` measures with.

    Raises RatchetError where they are not there, were changed, or write actions in another format.
    """
    folder = root / FOLDER / name
    record = read_json(folder / "import.json")
    if record["action_format"] != action_format:
        raise RatchetError(
            f"demonstrate.imported: {name} writes actions as {record['action_format']}, env.action_format is {action_format}; import "
            f"{record['source']} again with --format {action_format}"
        )
    files = [folder / "episodes.parquet", folder / "steps.parquet"]
    if not all(path.is_file() for path in files) or not name.endswith(f"-{sha256_files(files)[:12]}"):
        raise RatchetError(f"{folder}: is not what was imported under this name; import {record['source']} again")
    measured = {task.task_id for panel in HELD_OUT_PANELS for task in read_panel(panels / f"{panel}.json").tasks}
    episodes, steps = read_table(files[0], "episodes"), read_table(files[1], "steps")
    kept = episodes.filter(pc.invert(pc.is_in(episodes["task_id"], value_set=pa.array(sorted(measured), pa.string()))))
    steps = steps.filter(pc.is_in(steps["episode_id"], value_set=kept["episode_id"].combine_chunks()))
    return kept, steps, episodes.num_rows - kept.num_rows
