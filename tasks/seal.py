"""The last stage: fails the run where a check failed and nobody waived it. Everything else is already written."""

from __future__ import annotations

from ratchet.files import read_json, write_json
from tasks.common import Stage, main, say


def run(stage: Stage) -> None:
    """Writes reports/seal.json, or exits 1 with the reasons."""
    from monitoring.waivers import read_waivers

    waived = {one["check"] for one in read_waivers(stage.path("waivers.yaml"))}
    report = read_json(stage.path("reports/report.json"))
    reasons = sorted({one["check"] for one in report["failed_checks"]} - waived)
    if reasons:
        say(f"seal: not sealed, failed checks: {', '.join(reasons)}; look at reports/report.html, then mend the data or `ratchet waive CHECK --reason …`")
        raise SystemExit(1)
    write_json(stage.out("reports/seal.json"), {"passed": True, "reasons": []})
    stage.finish()


if __name__ == "__main__":
    main("seal", run)
