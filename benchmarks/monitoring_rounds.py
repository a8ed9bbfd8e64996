"""Rounds of the proving ground through the real stages, in one process: what benchmarks/monitoring.py measures with.

A workspace is kept where it lies, and what is done is not done again, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
ROUND = ("harvest", "label", "check", "buffer", "fit_meter", "fit_critic", "evolve_offline", "evolve_online", "evaluate", "drift", "decide")
SMALL = (
    "env.players=1",
    "env.threads=1",
    "harvest.episodes=100",
    "evaluate.temperature=1.0",  # so that a frozen actor's evaluations differ by chance
    "decide.resamples=1000",
    "buffer.own.tasks=32",
)
FROZEN = ("evolve_online.lr=1.0e-30", "evolve_online.iterations=1", "evolve_online.tasks=2", "evolve_online.samples=2", "evolve_online.keep_every=1")
LEARNING = ("evolve_online.iterations=4", "evolve_online.keep_every=4", "evolve_online.tasks=16", "evolve_online.samples=8")
SIZES = {
    False: ("prepare.games={train: 2000, seen: 32, select: 64, confirm: 256, test: 64}", "demonstrate.episodes=2000",
            "actors={actor: {layers: 2, width: 96, heads: 4, kv_heads: 2, mlp: 256, tokens: 500000}, "
            "small: {layers: 2, width: 32, heads: 2, kv_heads: 1, mlp: 96, tokens: 100000}}"),
    True: ("prepare.games={train: 300, seen: 8, select: 16, confirm: 48, test: 16}", "demonstrate.episodes=300",
           "actors={actor: {layers: 1, width: 48, heads: 2, kv_heads: 1, mlp: 96, tokens: 60000}, "
           "small: {layers: 1, width: 32, heads: 2, kv_heads: 1, mlp: 64, tokens: 20000}}"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Round:
    """What the gates of one round said: names of failed checks, of columns that warned and failed, the decision's event, and whether the
    gain's interval leaves out zero, whatever was decided."""

    failed_checks: list[str]
    warned_checks: list[str]
    warned: list[str]
    failed: list[str]
    event: str
    beyond_chance: bool


def lay(folder: Path, quick: bool, rounds: int, *sets: str) -> Path:
    """A workspace without DVC; one that is there with the same settings stays."""
    from ratchet.settings import dump_params, render_params

    base, preset = (yaml.safe_load((ROOT / name).read_text()) for name in ("params.yaml", "presets/proving-ground.yaml"))
    text = dump_params(render_params(base, preset, [*SIZES[quick], *SMALL, f"rounds={rounds}", *sets]))
    path = folder / "params.yaml"
    if path.is_file() and path.read_text() != text:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    for name in ("dvc.yaml", "waivers.yaml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run_stages(folder: Path, stages: Iterator[tuple[str, str | None]] | list[tuple[str, str | None]]) -> None:
    """Runs those that are not done yet, in this process."""
    import torch

    from ratchet.settings import load
    from tasks.common import Stage, perform

    torch.set_num_threads(1)
    path = folder / "done.json"
    done = json.loads(path.read_text()) if path.is_file() else []
    for name, key in stages:
        title = name if key is None else f"{name}@{key}"
        if title in done:
            continue
        perform(Stage(folder, load(folder / "params.yaml"), name, key), importlib.import_module(f"tasks.{name}").run)
        done.append(title)
        path.write_text(json.dumps(done))


def before_rounds(folder: Path) -> None:
    """Games, demonstrations, warm starts, the first champion."""
    from ratchet.settings import load

    actors = [("warm_start", name) for name in load(folder / "params.yaml").actors]
    run_stages(folder, [("prepare", None), ("demonstrate", None), *actors, ("evaluate", "0"), ("baseline", None)])


def rounds_of(folder: Path, count: int) -> list[Round]:
    """Plays the rounds and reads what their gates said."""
    before_rounds(folder)
    for k in range(1, count + 1):
        run_stages(folder, [(name, str(k)) for name in ROUND])
    return [gates(folder, k) for k in range(1, count + 1)]


def gates(folder: Path, k: int) -> Round:
    """What stopped, kept back or warned in round `k`."""
    base = folder / "data" / "rounds" / str(k)
    verdicts: list[dict[str, Any]] = [json.loads((base / path).read_text()) for path in ("check/verdict.json", "drift/evaluation.json")]
    bad = [check for verdict in verdicts for check in verdict["checks"] if not check["passed"]]
    columns = json.loads((base / "drift/drift.json").read_text())["columns"]
    decision = json.loads((base / "decision/decision.json").read_text())
    gain = decision["comparison"]["gain"] if decision["comparison"] is not None else {"low": 0.0, "high": 0.0}
    return Round(
        failed_checks=[check["name"] for check in bad if check["severity"] == "fail"],
        warned_checks=[check["name"] for check in bad if check["severity"] == "warn"],
        warned=[f"{one['name']} against {one['against']}" for one in columns if one["level"] == "warn"],
        failed=[f"{one['name']} against {one['against']}" for one in columns if one["level"] == "fail"],
        event=decision["event"],
        beyond_chance=gain["low"] > 0 or gain["high"] < 0,
    )


def is_false_gate(one: Round) -> bool:
    """In a round in which nothing was wrong and nothing changed: a failed check, drift that fails, or a decision that says otherwise."""
    return bool(one.failed_checks or one.failed) or one.event != "model.kept"
