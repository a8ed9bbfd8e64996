"""The quality suite's verdict on the harvest and its labels. A verdict is data: this stage does not fail, `decide` acts on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.episodes.files import read_table
from ratchet.evaluation.panels import read_panel
from ratchet.files import read_json, write_bytes, write_json
from tasks.common import Stage, main, say, skipped

PANELS = ("train", "select", "confirm", "test")
ACCEPTED = "accepted.json"


def run(stage: Stage) -> None:
    """Writes data/rounds/K/check: verdict.json, check.html, and accepted.json, the lengths of the last round that passed."""
    assert stage.key is not None
    base = stage.path(f"data/rounds/{stage.key}")
    if reason := skipped(base / "labels"):
        return stage.skip(reason)
    from monitoring.quality import run_suite
    from monitoring.quality_page import verdict_page
    from monitoring.quality_results import profile

    episodes = read_table(base / "harvest" / "episodes.parquet", "episodes")
    steps = read_table(base / "harvest" / "steps.parquet", "steps")
    accepted = last_accepted(stage.path(f"data/rounds/{stage.settings.rounds[stage.key].prev}/check"))
    verdict = run_suite(
        episodes,
        steps,
        read_table(base / "labels" / "labels.parquet", "labels"),
        limits=stage.settings.check.model_dump(),
        panels=panel_tasks(stage),
        replay=read_json(base / "labels" / "replay.json"),
        accepted=accepted["policies"],
    )
    out = stage.out(f"data/rounds/{stage.key}/check")
    write_json(out / "verdict.json", verdict)
    write_bytes(out / "check.html", verdict_page(f"Round {stage.key}: checks of the data", verdict).encode())
    write_json(out / ACCEPTED, {"round": int(stage.key), "policies": profile(episodes, steps)} if verdict["passed"] else accepted)
    failed = [check["name"] for check in verdict["checks"] if not check["passed"]]
    say(f"{stage.title}: {len(verdict['checks'])} checks, {'all passed' if not failed else 'not passed: ' + ', '.join(failed)}")
    stage.finish()


def panel_tasks(stage: Stage) -> dict[str, set[str]]:
    """The task ids of each panel."""
    return {name: {task.task_id for task in read_panel(stage.path(f"data/panels/{name}.json")).tasks} for name in PANELS}


def last_accepted(folder: Path) -> dict[str, Any]:
    """The profile that an earlier check left; one of nobody where none did."""
    path = folder / ACCEPTED
    return read_json(path) if path.is_file() else {"round": 0, "policies": {}}


if __name__ == "__main__":
    main("check", run, "round")
