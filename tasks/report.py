"""The run's page and the plain JSON behind it."""

from __future__ import annotations

from ratchet.files import write_bytes, write_json
from ratchet.page.gather import gather
from ratchet.page.report import render
from tasks.common import Stage, main, say


def run(stage: Stage) -> None:
    """Writes reports/report.json and reports/report.html."""
    report = gather(stage.root)
    write_json(stage.out("reports/report.json"), report)
    write_bytes(stage.out("reports/report.html"), render(report).encode("utf-8", "replace"))
    say("report: reports/report.html")
    stage.finish()


if __name__ == "__main__":
    main("report", run)
