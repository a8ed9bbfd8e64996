"""Cells: one arm with one seed, learned and played on one panel; and the store of those that are done.

A done cell is a JSON file named by arm, seed and key, a hash of what the protocol says of it: world, settings, seed, panel. It holds its
complete settings and the version of the code, so a later protocol that asks for the same thing finds it. Settings that did not exist
yet when it was made do not matter while they are at their defaults. Code of another version does, unless it is asked to be accepted. A
result that began from another warm start is never taken: the same settings learn other weights on another machine, and what is compared
has to begin from the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evidence.code import CRITIC, METER, code_version
from benchmarks.evidence.protocol import Differences, Protocol, World, merged
from benchmarks.evidence.workspaces import beneath, environment_files, rendered
from ratchet.files import read_json, sha256_json, write_json
from ratchet.settings import BESIDE

ALONE = {"env": {"players": 1, "threads": 1, "workers": 1}}
"""A cell is one process of one thread, beside an environment's; several cells are run at a time instead."""
ALIKE = ("line", "env.threads", *(f"env.{name}" for name in BESIDE))  # settings that change no result
ALIKE_SHARE = 0.01
OF_WORLD = ("env", "prepare", "demonstrate", "actors", "learner", "warm_start", "evaluate")


@dataclass(frozen=True)
class Cell:
    """What is run: `differences` on top of the world's preset, with `seed`, played on `panel` at the end. `meter_world` is where its meter
    is fitted, where that is another one."""

    arm: str
    world: World
    differences: Differences
    seed: int
    panel: str
    meter_world: World | None = None

    @cached_property
    def key(self) -> str:
        asked = [self.world.preset, self.world.seed, self.differences, self.seed, self.panel]
        return sha256_json(asked if self.meter_world is None else [*asked, self.meter_world.model_dump()])[:16]

    @cached_property
    def meter_cell(self) -> Cell | None:
        """What fits its meter in another world: that world's settings, with this cell's for pool and meter."""
        if self.meter_world is None:
            return None
        own = {key: self.differences[key] for key in ("harvest", "fit_meter") if key in self.differences}
        settings = merged(self.meter_world.set, own, {"evolve_online": {"meter": {"enabled": True}}})
        return Cell(self.arm, self.meter_world, settings, self.meter_world.seed, self.panel)

    @cached_property
    def params(self) -> dict[str, Any]:
        """Complete settings. Raises RatchetError for what cannot work."""
        return rendered(self.world.preset, merged(self.differences, {"seed": self.seed}, ALONE))

    @cached_property
    def world_params(self) -> dict[str, Any]:
        """Those of its world: what is set for the rounds alone is as in params.yaml."""
        before = {key: value for key, value in self.differences.items() if key in OF_WORLD}
        return rendered(self.world.preset, merged(before, {"seed": self.world.seed}, ALONE))

    @cached_property
    def world_key(self) -> str:
        """Of the settings that games, demonstrations and warm start depend on, and of the code."""
        own = {key: self.world_params[key] for key in OF_WORLD}
        return sha256_json([own, self.world.seed, code_version(environment_files(self.params))])[:16]

    @cached_property
    def code(self) -> str:
        buffered = self.params["fit_critic"]["enabled"] or self.params["evolve_offline"]["enabled"]
        metered = self.params["evolve_online"]["meter"]["enabled"]
        files = [path for cell in (self, self.meter_cell) if cell is not None for path in environment_files(cell.params)]
        return code_version(files, (*(CRITIC if buffered else ()), *(METER if metered else ())))


def cells_of(protocol: Protocol, arms: list[str], choices: Mapping[str, Differences]) -> list[Cell]:
    """The final cells of `arms`, whose choices are made."""
    return [
        _cell(protocol, arm, choices[arm], seed, protocol.rules.final.panel)
        for arm in arms
        for seed in range(1, protocol.rules.arms[arm].seeds + 1)
    ]


def tuning_cells(protocol: Protocol, arm: str) -> list[tuple[Differences, list[Cell]]]:
    """For each setting that the arm may choose, its cells."""
    own = protocol.rules.tuning
    return [
        (choice, [_cell(protocol, arm, choice, seed, own.panel) for seed in own.seeds])
        for choice in protocol.rules.arms[arm].tune
    ]


def _cell(protocol: Protocol, arm: str, choice: Differences, seed: int, panel: str) -> Cell:
    return Cell(arm, protocol.world(arm), protocol.differences(arm, choice), seed, panel, protocol.meter_world(arm))


@dataclass(frozen=True)
class Warm:
    """What a warm start is known by on whatever machine: which tasks of a panel it solves."""

    panel: str
    solved: str

    def is_like(self, other: Warm) -> bool:
        """Equal up to the order of sums, by which one task in hundreds may come out otherwise."""
        return self.panel == other.panel and float(np.mean(bits(self.solved) != bits(other.solved))) <= ALIKE_SHARE


class Store:
    """Done cells in one folder."""

    def __init__(self, folder: Path, *, any_code: bool = False) -> None:
        self.folder, self.any_code = folder, any_code
        self.warm: dict[str, Warm] = {}
        """By world key, as far as it is known yet."""

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.arm}-{cell.seed}-{cell.key}-{cell.world_key[:8]}.json"

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """The cell's result, also one that another protocol made under another arm's name; None where there is none that holds."""
        for path in sorted(self.folder.glob(f"*-{cell.seed}-{cell.key}*.json")):
            found = read_json(path)
            if self.other_than(found, cell) is None:
                return found
        return None

    def other_than(self, found: Mapping[str, Any], cell: Cell) -> str | None:
        """Why a result with the cell's key is not the cell's, or None."""
        if found["code"] != cell.code and not self.any_code:
            return f"it was made by code {found['code']}, and this is {cell.code}"
        warm = self.warm.get(cell.world_key)
        if warm is not None and ("warm" not in found or not warm.is_like(Warm(**found["warm"]))):
            return f"it began from another warm start, that of world {found.get('world')}"
        before = dict(flat(found["settings"]))
        for key, value in flat(cell.params):
            if key in ALIKE:
                continue
            if key in before and before[key] != value:
                return f"its {key} is {before[key]}, and now {value}"
            if key not in before and _at(beneath(), key) != value:
                return f"it did not know {key}, which is now {value}"
        return None

    def put(self, cell: Cell, result: dict[str, Any]) -> None:
        write_json(self.path(cell), result)

    def keep_panel(self, digest: str, name: str, tasks: list[list[str]]) -> None:
        """Which tasks (id, stratum, cluster) a panel has, once for all cells that played it."""
        path = self._panel_path(digest)
        if not path.is_file():
            write_json(path, {"name": name, "hash": digest, "tasks": tasks})

    def panel(self, digest: str) -> tuple[np.ndarray, np.ndarray]:
        """(strata, clusters) of a panel's tasks, in the order of a cell's bits."""
        rows = read_json(self._panel_path(digest))["tasks"]
        return np.array([row[1] for row in rows]), np.array([row[2] for row in rows])

    def _panel_path(self, digest: str) -> Path:
        return self.folder / "panels" / f"{digest[:16]}.json"


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all leaves; a list is a leaf."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _at(values: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def bits(text: str) -> np.ndarray:
    """`0110…` as floats [tasks]."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.float64) - ord("0")
