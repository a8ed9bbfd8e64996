"""The run's page and the plain JSON behind it."""

from __future__ import annotations

from ratchet.files import read_json, write_bytes, write_json
from ratchet.page.gather import gather
from ratchet.page.report import render
from tasks.common import Stage, main, say


def run(stage: Stage) -> None:
    """Writes reports/report.json and reports/report.html."""
    report = gather(stage.root)
    report["verdicts"] = _verdicts(stage)
    write_json(stage.out("reports/report.json"), report)
    write_bytes(stage.out("reports/report.html"), render(report).encode("utf-8", "replace"))
    say("report: reports/report.html")
    stage.finish()


def _verdicts(stage: Stage) -> list[dict]:
    """Every verdict of the run: on harvests by `check`, on evaluations by `decide`."""
    files = sorted(stage.path("data/rounds").glob("*/check/verdict.json"))
    decisions = [read_json(path) for path in sorted(stage.path("data/rounds").glob("*/decision/decision.json"))]
    return [*(read_json(path) for path in files), *(one["evaluation_checks"] for one in decisions if one.get("evaluation_checks"))]


if __name__ == "__main__":
    main("report", run)
