"""Where to read more about an event: its run, or what the monitor wrote."""

import os
from pathlib import Path

from flows.reports import URL_VARIABLE, monitor_url, run_url
from flows.workspace import HERE, RUNS
from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.store.outbox import Event

MONITOR = "monitor"  # key of an event's data: the id of the look that the monitor took


def monitor_folder(root: Path, look: str) -> Path:
    """What the monitor wrote in one look."""
    return root / ".ratchet" / "monitor" / look


def report_of(root: Path, run_id: str) -> Path:
    """The report of a run, whether it is written yet or not."""
    return (root if run_id == HERE else root / RUNS / run_id) / "reports" / "report.html"


def link_to(root: Path, event: Event) -> str:
    """An address of the page that `ratchet serve` shows: the run, whose report is written when it ends. Else that of the report's file."""
    base, look = _base(root), event.data.get(MONITOR)
    if look is not None:
        return monitor_link(root, look)
    return run_url(base, event.run) if base else report_of(root, event.run).resolve().as_uri()


def monitor_link(root: Path, look: str) -> str:
    """Where one look of the monitor opens."""
    base = _base(root)
    return monitor_url(base, look) if base else (monitor_folder(root, look) / "report.html").resolve().as_uri()


def _base(root: Path) -> str | None:
    if given := os.environ.get(URL_VARIABLE):
        return given
    try:
        return read_json(root / ".ratchet" / "serve" / "serve.json").get("reports")
    except RatchetError:  # no `ratchet serve` is at work here
        return None
