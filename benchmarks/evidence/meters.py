"""The meter of some cells: fitted once on a pool of the world's warm starts, frozen, and shared by all seeds and arms that mean the same one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from benchmarks.evidence.workspaces import ROUND, SHARED, lay, link, run_once
from ratchet.files import read_json, sha256_json, write_json
from ratchet.settings import Settings, dump_params, load, parse
from tasks.common import SKIPPED, Stage

OF_METER = ("env", "prepare", "actors", "harvest", "fit_meter")
GATE = ("accuracy", "majority", "ece", "unparsable")
METER = f"models/rounds/{ROUND}/meter"
GIVEN = "given"
"""What evolve_online.meter.given has to be where a meter comes from another world."""


def home_of(world: Path, settings: Settings, given: Path | None = None) -> Path:
    """The workspace in which the meter of these settings is fitted; where one is `given` from another such workspace, in which it is judged."""
    values = settings.model_dump(mode="json")
    own = {key: values[key] for key in OF_METER} | {key: values["evolve_online"]["meter"][key] for key in ("delta", "cost", "terminal", "failure_cost")}
    asked = [world.name, own] if given is None else [world.name, own, given.name]
    return world.parent.parent / "meters" / sha256_json(asked)[:16]


def share_meter(folder: Path, world: Path, other: Mapping[str, Any] | None = None) -> None:
    """Links the meter that a cell's settings mean into it; whoever comes first plays the pool and fits it, with the world's seed. With
    `other` (`world` and `params`) it is that other world's, and the cell's own pool only judges it."""
    given = None if other is None else _fitted(Path(other["world"]), parse(other["params"]))
    home = _fitted(world, load(folder / "params.yaml"), given)
    for path in (METER, f"data/rounds/{ROUND}/meter"):
        link(home / path, folder / path)


def _fitted(world: Path, settings: Settings, given: Path | None = None) -> Path:
    home = home_of(world, settings, given)
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{home}.lock"):
        _fit(home, world, settings, given)
    return home


def _fit(home: Path, world: Path, settings: Settings, given: Path | None) -> None:
    if (home / "done" / f"fit_meter@{ROUND}").is_file():
        return
    seeded = settings.model_copy(update={"seed": load(world / "params.yaml").seed})
    lay(home, dump_params(seeded.model_dump(mode="json")))
    if given is not None:
        link(given / METER, home / GIVEN)
    for path in (*SHARED, "data/demonstrations", f"models/warm/{settings.actor}"):
        link(world / path, home / path)
    link(world / "models" / "warm" / settings.actor, home / "models" / "rounds" / "0" / "start")
    write_json(home / "data" / "rounds" / "0" / "decision" / "decision.json", {"round": 0, "stop": None})
    write_json(home / "models" / "rounds" / "0" / "meter" / SKIPPED, {"skipped": "no round was played yet"})
    write_json(home / "data" / "rounds" / ROUND / "check" / "verdict.json", {"checks": []})
    for member in settings.harvest.pool:
        if member.policy in settings.actors and member.policy != settings.actor:
            run_once(home, "warm_start", member.policy)
    for name in ("harvest", "fit_meter"):
        run_once(home, name, ROUND)
    shutil.rmtree(home / ".ratchet", ignore_errors=True)


def gate_of(folder: Path, key: str = ROUND) -> dict[str, float]:
    """What the gate said of a cell's meter in a round, for its curve; `meter_gate_off` is 1 where the round went on without one."""
    record = read_json(folder / "data" / "rounds" / key / "meter" / "gate.json")
    verdict, sign = record["gate"], record["gate"]["sign"] or {}
    found = {f"meter_gate_{name}": verdict[name] for name in GATE} | {
        "meter_gate_passed": float(verdict["passed"]),
        "meter_gate_off": float(record["action"] == "off"),
        "meter_gate_sign": sign.get("signed_balanced_accuracy"),
        "meter_gate_signed_accuracy": sign.get("signed_accuracy"),
        "meter_gate_limit": record["limit"],
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def guided(home: Path, panel: str, tasks: int, candidates: int) -> dict[str, Any]:
    """The pool's actor on some tasks of a panel, by itself and guided by its meter; kept beside the meter."""
    from flows.guiding import guided as guide
    from ratchet.evaluation.panels import make_panel, read_panel
    from ratchet.evaluation.summary import summarise
    from tasks.evaluate import play_panel

    kept = home / f"guided-{panel}-{tasks}-{candidates}.json"
    if not kept.is_file():
        settings = load(home / "params.yaml")
        model = home / "models" / "warm" / settings.actor
        part = make_panel(panel, read_panel(home / "data" / "panels" / f"{panel}.json").tasks[:tasks])
        stage = Stage(home, settings, "evaluate", ROUND)
        natural, _, _ = play_panel(stage, model, part, panel)
        found = guide(stage, model, home / METER, part, panel, candidates, home / "data" / "games", natural, home)
        write_json(kept, {**found, "natural": summarise(natural)})
    return read_json(kept)
