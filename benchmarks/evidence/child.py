"""A cell in a process of its own: `python -m benchmarks.evidence.child FOLDER`, where FOLDER/cell.json says what to run.

It runs the stages' own code (tasks/evolve_online.py, tasks/evaluate.py) in a workspace in FOLDER. Killed at any point, it goes on
where it was when it is started again, to the same bytes.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.evidence.meters import gate_of
from benchmarks.evidence.rounds import in_rounds, learn_rounds
from benchmarks.evidence.workspaces import begin_cell, learn, make_world, play
from ratchet.envs.worker import die_with_parent
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.settings import load


def main(folder: Path) -> int:
    die_with_parent()
    torch.set_num_threads(1)  # results differ in their last bits with the number of threads
    asked = read_json(folder / "cell.json")
    began = time.monotonic()
    world = Path(asked["world"])
    try:
        if asked["kind"] == "world":
            make_world(world, asked["params"])
            result = {"panels": {name: played(world, world / "models" / "warm" / asked["actor"], name, asked) for name in asked["panels"]}}
        else:
            begin_cell(folder, world, asked["params"], asked.get("meter"))
            if in_rounds(load(folder / "params.yaml")):
                model, curve = learn_rounds(folder)
            else:
                model = learn(folder)
                curve = read_json(folder / "reports" / "metrics" / "evolve_online-1.json")["curve"]
                if load(folder / "params.yaml").evolve_online.meter.enabled:
                    curve[0] |= gate_of(folder)
            result = {"curve": curve, "panels": {name: played(folder, model, name, asked) for name in asked["panels"]}}
    except RatchetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_json(folder / "result.json", result | {"seconds": round(time.monotonic() - began, 1)})
    return 0


def played(folder: Path, model: Path, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Success on a panel task by task as a text of bits in the panel's order, and each of the script's own marks likewise."""
    panel, _, episodes, steps = play(folder, model, name)
    rows = {row["task_id"]: row for row in episodes.to_pylist()}
    ordered = [rows[task.task_id] for task in panel.tasks]
    marks = {"solved": [row["solved"] for row in ordered]}
    for mark, where in asked["marks"].items():
        module, _, function = where.partition(":")
        found = getattr(importlib.import_module(module), function)(episodes, steps)
        marks[mark] = [found[row["episode_id"]] for row in ordered]
    lengths = [row["n_steps"] for row in ordered]
    return {
        "hash": panel.hash,
        "n": len(ordered),
        "errors": sum(row["error"] is not None for row in ordered),
        "success": float(np.mean(marks["solved"])),
        "mean_steps": float(np.mean(lengths)),
        "mean_tokens": float(np.mean([row["n_tokens"] for row in ordered])),
        "marks": {mark: "".join("1" if value else "0" for value in values) for mark, values in marks.items()},
        "tasks": [[task.task_id, task.stratum, task.cluster] for task in panel.tasks],
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
