"""Pages about runs: the list, and one run with its rounds, their checks, their drift and their decisions; and about alerts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ratchet.page import figures
from ratchet.page.gather import decision_of, round_numbers, round_of
from ratchet.page.shelf import Run, Shelf, part_of
from ratchet.page.words import EVENTS, skipped
from ratchet.store.browse import files_of
from ratchet.store.index import HERE
from ratchet.store.outbox import FAILED, HANDED, MUTED, SENT, Delivery
from ratchet.yaml_files import read_yaml

STATES = {
    "finished": "good", "running": "new", "new": "calm", "stopped": "warn", "failed": "bad", "killed": "bad", "interrupted": "warn",
}  # fmt: skip
REPORT = Path("reports") / "report.html"
KINDS = {
    "check.failed": ("a check failed", "bad"),
    "drift.detected": ("drift", "warn"),
    "stage.failed": ("a stage failed", "bad"),
    "model.rolled_back": ("rolled back", "warn"),
    "approval.needed": ("waits for a person", "warn"),
} | EVENTS
DELIVERIES = {SENT: ("sent", "good"), HANDED: ("under way", "calm"), FAILED: ("failed", "bad"), MUTED: ("muted", "calm")}
_ROW = re.compile(r"([0-9A-Za-z][0-9A-Za-z._-]{3,80}):(\d{1,6})")
MOST_ALERTS = 300


def runs(shelf: Shelf) -> dict[str, Any]:
    """All runs, the newest first, each with what its rounds came to."""
    return {"rows": [_row(shelf, run) for run in shelf.runs()], "here": _here(shelf)}


def _row(shelf: Shelf, run: Run) -> dict[str, Any]:
    row = {name: getattr(run, name) for name in ("run_id", "state", "stages_done", "stages", "seconds")}
    decided = [one for k in round_numbers(run.workspace, {}) if (one := decision_of(run.workspace, k)) and not one.get("skipped")]
    marks = [(one.get("round"), *EVENTS.get(one.get("event"), (str(one.get("event")), "calm"))) for one in decided]
    champion = decided[-1]["champion"] if decided else None
    report = (run.workspace / REPORT).is_file()
    return row | {"tone": STATES.get(run.state, "calm"), "marks": marks, "champion": champion, "report": report}


def _here(shelf: Shelf) -> bool:
    return shelf.workspace(HERE) is not None


def run(shelf: Shelf, run_id: str) -> dict[str, Any] | None:
    """One run, or None where there is none of that name."""
    workspace = shelf.workspace(run_id)
    if workspace is None:
        return None
    path = workspace / "params.yaml"
    settings = shelf.kept(f"settings of {run_id}", [path], lambda: (read_yaml(path) or {}) if path.is_file() else {})
    rounds = [_round(workspace, k) for k in round_numbers(workspace, settings)]
    found = next((one for one in shelf.runs() if one.run_id == run_id), None)
    counted = [one for one in files_of(shelf.engine, shelf.checkout) if one.run_id == run_id]
    record = part_of(workspace / "logs" / "run.json") or {}
    return {
        "run_id": run_id,
        "state": found.state if found else None,
        "tone": STATES.get(found.state, "calm") if found else "calm",
        "reason": record.get("reason"),
        "run": found,
        "stages": _stages(record),
        "line": settings.get("line"),
        "seed": settings.get("seed"),
        "rounds": rounds,
        "ratchet": figures.ratchet({"rounds": rounds}),
        "episodes": [one.stage for one in counted[::-1]],
        "report": (workspace / REPORT).is_file(),
    }


def _stages(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Stages in order with their last state; what has not run yet is `waiting`."""
    done = {one["name"]: one for one in record.get("stages") or []}
    return [done.get(name) or {"name": name, "state": "waiting", "seconds": None} for name in record.get("order") or done]


def _round(workspace: Path, k: int) -> dict[str, Any]:
    one = round_of(workspace, k)
    folder = workspace / "data" / "rounds" / str(k)
    decision = one["decision"] or {}
    verdicts = [("Checks of the data", one["check"])]
    if decision.get("checks") and decision["checks"] != one["check"]:
        verdicts.append(("Checks of the evaluation's rows", decision["checks"]))
    drift = one.get("drift")
    columns = [] if skipped(drift) else drift.get("columns") or []
    return one | {
        "mark": figures.badge(one),
        "verdicts": [(title, _checks(verdict)) for title, verdict in verdicts if verdict and not skipped(verdict)],
        "unchecked": skipped(one["check"]) if k else None,
        "waived": {item["check"]: item["reason"] for item in decision.get("waived") or []},
        "drifted": [column for column in columns if column.get("level") in ("warn", "fail")],
        "drift_columns": columns,
        "pages": {"check": page_name(folder / "check"), "drift": page_name(folder / "drift")},
    }


def _checks(verdict: dict[str, Any]) -> dict[str, Any]:
    """A verdict, what failed first; rows that name an episode and a step are told from others, so that they can be links."""
    order = {("fail", False): 0, ("warn", False): 1}
    checks = [check | {"places": [places(text) for text in check.get("rows") or []]} for check in verdict.get("checks") or []]
    checks.sort(key=lambda check: order.get((check.get("severity"), check.get("passed")), 2))
    return verdict | {"checks": checks, "bad": [check for check in checks if not check.get("passed")], "good": [c for c in checks if c.get("passed")]}


def places(text: str) -> tuple[str, str | None, str | None]:
    """(the text, episode id, step) of a row that a check names as `EPISODE:STEP`; others name no step."""
    found = _ROW.fullmatch(str(text))
    return (str(text), found[1], found[2]) if found else (str(text), None, None)


def page_name(folder: Path) -> str | None:
    """The page that a stage wrote into its folder, or None."""
    names = sorted(path.name for path in folder.glob("*.html")) if folder.is_dir() else []
    return names[0] if names else None


def page_of(shelf: Shelf, run_id: str, what: str, k: str | None = None) -> Path | None:
    """The file of a run's report, or of a round's page of `check` or `drift`; None where there is none. Never another file."""
    workspace = shelf.workspace(run_id)
    if workspace is None or (k is not None and not (k.isascii() and k.isdigit())):
        return None
    if what == "report":
        path = workspace / REPORT
    else:
        folder = workspace / "data" / "rounds" / str(k) / what
        name = page_name(folder) if what in ("check", "drift") else None
        path = folder / name if name else None
    return path if path is not None and path.is_file() else None


def monitor_page(shelf: Shelf, look: str) -> Path | None:
    """What the monitor wrote in one look, or None."""
    folder = shelf.root / ".ratchet" / "monitor"
    known = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
    path = known[look] / "report.html" if look in known else None
    return path if path is not None and path.is_file() else None


def alerts(shelf: Shelf, kind: str | None) -> dict[str, Any]:
    """Events, the newest first, with what became of each at Prefect and at the receivers of alerts."""
    events, waiting, deliveries = shelf.alerts()
    kinds: dict[str, int] = {}
    for event in events:
        kinds[event.kind] = kinds.get(event.kind, 0) + 1
    wanted = [event for event in events if kind in (None, event.kind)]
    known = {run.run_id for run in shelf.runs()}
    rows = [
        {
            "event": event,
            "what": KINDS.get(event.kind, (event.kind, "calm")),
            "state": _state(event.id in waiting, deliveries.get(event.id, {})),
            "receivers": [(name, *DELIVERIES.get(one.state, (one.state, "calm")), one) for name, one in sorted(deliveries.get(event.id, {}).items())],
            "has_run": event.run in known,
            "look": event.data.get("monitor") if isinstance(event.data, dict) else None,
        }
        for event in wanted[:MOST_ALERTS]
    ]
    return {"rows": rows, "left": max(0, len(wanted) - MOST_ALERTS), "kinds": dict(sorted(kinds.items())), "kind": kind, "waiting": len(waiting)}


def _state(waits: bool, receivers: dict[str, Delivery]) -> tuple[str, str, str]:
    """(word, tone, sentence) for where an event stands: the worst of its receivers, else whether Prefect took it."""
    states = {one.state for one in receivers.values()}
    if FAILED in states:
        again = any(one.next for one in receivers.values() if one.state == FAILED)
        return ("retrying", "warn", "A receiver did not take it; it is tried again.") if again else (
            "not delivered", "bad", "A receiver did not take it for a week; it is not tried again.")  # fmt: skip
    if waits:
        return "waiting", "warn", "Kept until Prefect's API answers; `ratchet sync` or the next run delivers it."
    if HANDED in states:
        return "under way", "calm", "Prefect has it; its receivers have not answered yet."
    if SENT in states:
        return "sent", "good", "Every receiver that is told took it."
    return "delivered", "good", "Prefect took it."
