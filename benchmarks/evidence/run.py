"""Runs a protocol's cells, several at a time, each in a process of its own, and takes those that are done from the store."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from benchmarks.evidence.cells import Cell, Store, Warm, bits, cells_of, tuning_cells
from benchmarks.evidence.protocol import Differences, Protocol
from benchmarks.evidence.workspaces import CHECKOUT
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.settings import dump_params

SCRATCH = CHECKOUT / ".ratchet" / "evidence"
Advance = Callable[[], object]
Waiting = tuple[str, Path, dict[str, Any]]
"""What it is called, its folder, what it is asked."""
KEPT = (
    "iteration", "success", "episodes", "env_steps", "generated_tokens", "zero_variance_groups", "groups", "entropy", "policy", "grad_norm",
    "invalid_share", "format_ok_share", "clip_fraction", "kl", "skipped_steps",
)  # fmt: skip
"""What of an iteration's metrics a result keeps, beside those of the terms that a method adds."""
ADDED = ("forecast", "echo", "success_sft", "observation", "replay", "resampled", "null", "select", "chance", "meter", "credit", "c_touched")


@dataclass
class Found:
    """All runs of a protocol: how each arm chose, and its final cells."""

    protocol: Protocol
    worlds: dict[str, dict[str, Any]] = field(default_factory=dict)  # by world: its warm start on the panels
    tuned: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by arm: each setting tried and its success
    choices: dict[str, Differences] = field(default_factory=dict)
    cells: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by arm, a result a seed

    def marks(self, arm: str, mark: str = "solved") -> np.ndarray:
        """[seeds, tasks] of 0 and 1."""
        return np.stack([bits(one["panel"]["marks"][mark]) for one in self.cells[arm]])


class Runner:
    """`jobs` processes at a time; `marks` name what a script reads off episodes, as mark → `module:function`."""

    def __init__(self, protocol: Protocol, store: Store, *, jobs: int, marks: dict[str, str], advance: Advance = lambda: None) -> None:
        self.protocol, self.store, self.jobs, self.marks, self.advance = protocol, store, jobs, marks, advance

    def run(self, arms: Sequence[str]) -> Found:
        """Worlds, then what is tuned, then the final cells of `arms`. Raises RatchetError where a cell fails, naming its log."""
        SCRATCH.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(SCRATCH / f"{self.protocol.name}.lock", timeout=1):
                return self._run(arms)
        except Timeout:
            raise RatchetError(f"{self.protocol.name}: another process is running these cells; wait for it, or stop it and start again") from None

    def _run(self, arms: Sequence[str]) -> Found:
        found, rules = Found(self.protocol), self.protocol.rules
        deciding = {rules.arms[arm].like or arm for arm in arms}
        tried = {arm: tuning_cells(self.protocol, arm) for arm in rules.arms if arm in deciding}
        deciding_cells = [cell for entries in tried.values() for _, cells in entries for cell in cells]
        self._worlds(deciding_cells, found)
        self._cells(deciding_cells)
        for arm, entries in tried.items():
            scores = [float(np.mean([self._result(cell)["panel"]["success"] for cell in cells])) for _, cells in entries]
            found.tuned[arm] = [
                {"set": choice, "success": round(score, 4), "cells": [cell.key for cell in cells]}
                for (choice, cells), score in zip(entries, scores, strict=True)
            ]
            found.choices[arm] = entries[int(np.argmax(scores))][0] if entries else {}
        for arm in arms:
            found.choices.setdefault(arm, found.choices[rules.arms[arm].like or arm])
        final = cells_of(self.protocol, list(arms), found.choices)
        self._worlds(final, found)
        self._cells(final)
        for cell in final:
            found.cells.setdefault(cell.arm, []).append(self._result(cell))
        return found

    def _result(self, cell: Cell) -> dict[str, Any]:
        result = self.store.find(cell)
        if result is None:
            raise RatchetError(f"{cell.arm}, seed {cell.seed}: its result is gone from {self.store.folder}; start again")
        return result

    def _worlds(self, cells: Sequence[Cell], found: Found) -> None:
        """Prepares what the cells begin from, once each, and plays its warm start on the panels."""
        names = {world.model_dump_json(): name for name, world in self.protocol.rules.worlds.items()}
        played, panels = {cell.world_key: cell for cell in cells}, [self.protocol.rules.tuning.panel, self.protocol.rules.final.panel]
        self._prepare(played, panels)
        for key, cell in played.items():
            result = read_json(self._world(cell) / "result.json")
            told = {name: {k: v for k, v in one.items() if k != "tasks"} for name, one in result["panels"].items()}
            found.worlds[names[cell.world.model_dump_json()]] = {"key": key, "panels": told}
            last = told[panels[-1]]
            self.store.warm[key] = Warm(last["hash"], last["marks"]["solved"])
        meters = [cell.meter_cell for cell in cells if cell.meter_cell is not None and self.store.find(cell) is None]
        self._prepare({cell.world_key: cell for cell in meters if cell.world_key not in played}, [])

    def _prepare(self, worlds: Mapping[str, Cell], panels: list[str]) -> None:
        missing = []
        for key, cell in worlds.items():
            folder = self._world(cell)
            asked = {"kind": "world", "world": str(folder), "params": dump_params(cell.world_params), "actor": next(iter(cell.world_params["actors"]))}
            asked |= {"panels": panels, "marks": self.marks}
            if not self._is_done(folder, asked):
                missing.append((f"world {key}", folder, asked))
        self._processes(missing)

    def _cells(self, cells: Sequence[Cell]) -> None:
        """Runs what is not in the store and puts it there."""
        waiting: dict[str, Cell] = {}
        for cell in cells:
            if self.store.find(cell) is None:
                waiting[cell.key] = cell
            else:
                self.advance()
        processes = []
        for cell in waiting.values():
            folder = SCRATCH / "cells" / f"{cell.key}-{cell.code}"
            asked = {"kind": "cell", "world": str(self._world(cell)), "params": dump_params(cell.params), "panels": [cell.panel], "marks": self.marks}
            if (other := cell.meter_cell) is not None:
                asked["meter"] = {"world": str(self._world(other)), "params": other.params}
            processes.append((f"{cell.arm}, seed {cell.seed}", folder, asked))
        by_folder = {folder: cell for (_, folder, _), cell in zip(processes, waiting.values(), strict=True)}

        def ended(folder: Path) -> None:
            self._keep(by_folder[folder], read_json(folder / "result.json"))
            shutil.rmtree(folder)
            self.advance()

        self._processes([one for one in processes if not self._is_done(one[1], one[2])], ended)
        for folder in [folder for folder in by_folder if folder.is_dir()]:  # done by a run that was killed before it was kept
            ended(folder)

    def _world(self, cell: Cell) -> Path:
        return SCRATCH / "worlds" / cell.world_key

    def _is_done(self, folder: Path, asked: dict[str, Any]) -> bool:
        """Whether the process has run; what it is asked is laid down where not."""
        spec = folder / "cell.json"
        if (folder / "result.json").is_file() and spec.is_file() and read_json(spec) == asked:
            return True
        (folder / "result.json").unlink(missing_ok=True)
        write_json(spec, asked)
        return False

    def _keep(self, cell: Cell, result: dict[str, Any]) -> None:
        panel = result["panels"][cell.panel]
        self.store.keep_panel(panel["hash"], cell.panel, panel.pop("tasks"))
        curve = [{k: _short(v) for k, v in point.items() if k in KEPT or k.startswith(ADDED)} for point in result["curve"]]
        self.store.put(
            cell,
            {
                "arm": cell.arm,
                "seed": cell.seed,
                "key": cell.key,
                "code": cell.code,
                "protocol": self.protocol.hash,
                "world": cell.world_key,
                "warm": asdict(self.store.warm[cell.world_key]),
                "differences": cell.differences,
                "settings": cell.params,
                "curve": curve,
                "panel": {"name": cell.panel, **panel},
                "seconds": result["seconds"],
            },
        )

    def _processes(self, waiting: Sequence[Waiting], ended: Callable[[Path], None] = lambda folder: None) -> None:
        """Runs them, `jobs` at a time. They die with this process, and are stopped where one of them fails."""
        left = list(waiting)
        running: dict[subprocess.Popen[bytes], tuple[str, Path]] = {}
        try:
            while left or running:
                while left and len(running) < self.jobs:
                    name, folder, _ = left.pop(0)
                    running[_start(folder)] = (name, folder)
                for process in [one for one in running if one.poll() is not None]:
                    name, folder = running.pop(process)
                    if process.returncode:
                        log = folder / "log"
                        last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
                        raise RatchetError(f"{name} ended with {process.returncode}; the end of {log}:\n{last}")
                    ended(folder)
                time.sleep(0.2)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def _start(folder: Path) -> subprocess.Popen[bytes]:
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-m", "benchmarks.evidence.child", str(folder)]
        return subprocess.Popen(command, cwd=CHECKOUT, env={**os.environ, **quiet}, stdout=log, stderr=subprocess.STDOUT)


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
