"""Workspaces without DVC, in which the stages' own code runs: a world is prepared once, and a cell goes on from its warm start.

A stage that was killed goes on where it was, because it keeps its parts and checkpoints as in any run; a mark in `done/` says that it
need not be run again.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ratchet.envs.benchmarks import benchmark
from ratchet.evaluation.panels import read_panel
from ratchet.files import write_json
from ratchet.rendering import read_preset, render_params
from ratchet.settings import load
from ratchet.settings_critic import uses_buffer
from ratchet.yaml_files import read_yaml
from tasks.common import SKIPPED, Stage, perform

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED = ("data/games", "data/panels", "models/tokenizer")
ROUND = "1"
UNSAID = {
    "buffer": {"experts": 1000, "own": {"tasks": 256, "samples": 3, "greedy": 1, "temperature": 1.0, "shard": 256}, "online_failures": True},
    "fit_critic": {"enabled": False, "epochs": 3},
    "evolve_offline": {"enabled": False, "epochs": 2, "reference": {"estimator": "k3"}},
}
"""What a protocol's arms do where neither preset nor protocol says it: params.yaml's own sizes are those of a demo of some minutes, and
cells are kept that were made when k3 was the only estimator."""


@cache
def beneath() -> dict[str, Any]:
    """What all presets and protocols are differences to."""
    return render_params(read_yaml(CHECKOUT / "params.yaml"), UNSAID, [], "the evidence")


def rendered(preset: str, differences: Mapping[str, Any]) -> dict[str, Any]:
    """Complete params of `preset` with `differences` on top. Raises RatchetError for what cannot work."""
    below = render_params(beneath(), read_preset(CHECKOUT / "presets", preset), [], f"presets/{preset}.yaml")
    return render_params(below, {"rounds": 1, **differences}, [], "the protocol")


def lay(folder: Path, params: str) -> Path:
    """A workspace with this params.yaml; what is there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(params, encoding="utf-8")
    for name in ("dvc.yaml", "waivers.yaml"):
        shutil.copyfile(CHECKOUT / name, folder / name)
    return folder


def run_once(folder: Path, name: str, key: str | None = None) -> None:
    """Runs a stage to its end, unless it was."""
    mark = folder / "done" / f"{name}@{key or ''}"
    if mark.is_file():
        return
    perform(Stage(folder, load(folder / "params.yaml"), name, key), importlib.import_module(f"tasks.{name}").run)
    mark.parent.mkdir(exist_ok=True)
    mark.touch()


def make_world(folder: Path, params: str) -> None:
    """Games, panels, tokenizer, demonstrations, and the warm start of the actor that evolves."""
    lay(folder, params)
    actor = load(folder / "params.yaml").actor
    for name, key in (("prepare", None), ("demonstrate", None), ("warm_start", actor)):
        run_once(folder, name, key)


def begin_cell(folder: Path, world: Path, params: str, meter: Mapping[str, Any] | None = None) -> None:
    """A workspace at the beginning of its first round, which the world's warm start begins and nothing holds up. `meter` says in which
    other `world`, with which `params`, its meter is fitted."""
    lay(folder, params)
    for path in SHARED:
        link(world / path, folder / path)
    settings = load(folder / "params.yaml")
    warm = world / "models" / "warm" / settings.actor
    if uses_buffer(settings) or len(settings.rounds) > 1:  # benchmarks/evidence/rounds.py begins each round
        link(world / "data" / "demonstrations", folder / "data" / "demonstrations")
        link(warm, folder / "models" / "warm" / settings.actor)
        return
    link(warm, folder / "models" / "rounds" / ROUND / "offline")
    write_json(folder / "data" / "rounds" / "0" / "decision" / "decision.json", {"round": 0, "stop": None})
    write_json(folder / "data" / "rounds" / "0" / "replay" / SKIPPED, {"skipped": "no round was played yet"})
    write_json(folder / "data" / "rounds" / ROUND / "check" / "verdict.json", {"checks": []})
    if settings.evolve_online.meter.enabled:
        from benchmarks.evidence.meters import share_meter

        share_meter(folder, world, meter)


def learn(folder: Path) -> Path:
    """The online round; returns the folder of its last candidate."""
    run_once(folder, "evolve_online", ROUND)
    candidates = folder / "models" / "rounds" / ROUND / "candidates"
    return sorted(path for path in candidates.iterdir() if path.is_dir())[-1]


def play(folder: Path, model: Path, panel: str) -> tuple[Any, Any, Any, Any]:
    """(panel, outcomes, episodes, steps) of a model on a panel of the workspace; what was played before a kill is not played again."""
    from tasks.evaluate import play_panel

    stage = Stage(folder, load(folder / "params.yaml"), "evaluate", ROUND)
    chosen = read_panel(folder / "data" / "panels" / f"{panel}.json")
    return chosen, *play_panel(stage, model, chosen, panel)


def link(source: Path, target: Path) -> None:
    """Makes `target` a link to `source`, unless it is one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink():
        os.symlink(source.resolve(), target)


def environment_files(params: Mapping[str, Any]) -> list[Path]:
    """The code of the environment that is played."""
    module = importlib.import_module(type(benchmark(params["env"]["name"])).__module__)
    path = Path(str(module.__file__))
    return sorted(path.parent.glob("*.py")) if path.parent.name != "envs" else [path]
