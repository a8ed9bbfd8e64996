"""How soon people hear of something: from an event in the outbox to a webhook's receiver.

    python benchmarks/monitoring_alerts.py --json PATH

A new project, a real `ratchet serve` with its Prefect server, and a receiver on this machine. An event is put into the outbox as a run
does; `ratchet serve` finds it there and posts it, Prefect's automation fires and calls the webhook. Each event waits for the one before.
Figures: alert_latency_s, the longest of alert_events, and alert_latency_median_s. The seconds to start are not in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import main  # noqa: E402

from flows.project import create  # noqa: E402
from ratchet.store.outbox import Event, put  # noqa: E402

PACKAGES = ("ratchet-agents", "prefect", "httpx")
VARIABLE = "BENCHMARK_ALERT_URL"
PATIENCE_S = 120.0
Came = queue.Queue[tuple[float, dict[str, Any]]]
"""When something came, and what it said."""


def figures(quick: bool) -> dict[str, float]:
    """alert_latency_s (the longest), alert_latency_median_s and alert_events; `quick` sends few."""
    events = 3 if quick else 20
    with tempfile.TemporaryDirectory() as folder, receiving() as (port, came):
        project = told_project(Path(folder) / "project")
        with serving(project, Path(folder) / "prefect", port):
            seconds = [_latency(project, number, came) for number in range(events + 1)][1:]  # the first loads what the others find loaded
    return {
        "alert_latency_s": round(max(seconds), 3),
        "alert_latency_median_s": round(statistics.median(seconds), 3),
        "alert_events": float(events),
    }


def _latency(project: Path, number: int, came: Came) -> float:
    time.sleep(0.37 * (number % 4))  # at any time between two looks of `ratchet serve`
    began = time.perf_counter()
    put(project, Event("model.regression", "benchmark", number, "quickstart", None, f"round {number}: worse", {"source": "run"}))
    return came.get(timeout=PATIENCE_S)[0] - began


def told_project(project: Path) -> Path:
    """A new project whose alerts go to a webhook, the address in VARIABLE."""
    create(project)
    path = project / "prefect.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("alerts: []", f"alerts: [{{name: benchmark, kind: webhook, variable: {VARIABLE}}}]"), encoding="utf-8")
    return project


@contextlib.contextmanager
def receiving() -> Iterator[tuple[int, Came]]:
    """(port, what came)."""
    came: Came = queue.Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            at = time.perf_counter()
            came.put((at, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, came
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def serving(project: Path, home: Path, receiver: int) -> Iterator[str]:
    """`ratchet serve` of the project, ready to work; gives the address of its page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RATCHET_"))}
    environment = {**inherited, "PREFECT_HOME": str(home), "PYTHONPATH": str(ROOT), VARIABLE: f"http://127.0.0.1:{receiver}/"}
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "serve", "--port", str(port)],
        cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "Ctrl-C" in line:
            break
    else:
        raise SystemExit(f"ratchet serve ended with {process.wait()}: {''.join(said)}")
    try:
        yield next(line.removeprefix("page: ").strip() for line in said if line.startswith("page: "))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


if __name__ == "__main__":
    main("monitoring_alerts", __doc__, "few events", PACKAGES, lambda quick: (figures(quick), {}))
