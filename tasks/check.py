"""The quality suite's verdict on the harvest and its labels. A verdict is data: this stage does not fail, `decide` acts on it."""

from __future__ import annotations

from ratchet.episodes.files import read_table
from ratchet.evaluation.panels import read_panel
from ratchet.files import read_json, write_json
from tasks.common import Stage, main, say, skipped

PANELS = ("train", "select", "confirm", "test")


def run(stage: Stage) -> None:
    """Writes data/rounds/K/check/verdict.json."""
    from monitoring.quality import run_suite

    base = stage.path(f"data/rounds/{stage.key}")
    if reason := skipped(base / "labels"):
        return stage.skip(reason)
    panels = {name: {task.task_id for task in read_panel(stage.path(f"data/panels/{name}.json")).tasks} for name in PANELS}
    verdict = run_suite(
        read_table(base / "harvest" / "episodes.parquet", "episodes"),
        read_table(base / "harvest" / "steps.parquet", "steps"),
        read_table(base / "labels" / "labels.parquet", "labels"),
        limits=stage.settings.check.model_dump(),
        panels=panels,
        replay=read_json(base / "labels" / "replay.json"),
    )
    write_json(stage.out(f"data/rounds/{stage.key}/check/verdict.json"), verdict)
    failed = [check["name"] for check in verdict["checks"] if not check["passed"]]
    say(f"{stage.title}: {len(verdict['checks'])} checks, {'all passed' if not failed else 'not passed: ' + ', '.join(failed)}")
    stage.finish()


if __name__ == "__main__":
    main("check", run, "round")
