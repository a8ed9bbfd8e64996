"""How `ratchet serve` ends its children; no Prefect is needed for that."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import serve

FLOW_RUN = """
import signal, sys, time
def stop(*_):
    time.sleep(0.5)
    open(sys.argv[1], "w").write("ended its stage")
    sys.exit()
signal.signal(signal.SIGTERM, stop)
open(sys.argv[1] + ".up", "w").write("x")
time.sleep(300)
"""
STRAY = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open(sys.argv[1] + '.stray', 'w').write('x'); time.sleep(300)"
)
# reaps what it started, as Prefect's worker does: a zombie would be waited for
WORKER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for code, name in zip(sys.argv[1:3], ("prefect.engine", "stray")):
    print(subprocess.Popen([sys.executable, "-c", code, sys.argv[3], name], start_new_session=True).pid, flush=True)
time.sleep(300)
"""


def is_alive(pid: str) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.is_file() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_workers_runs_end_in_order_and_nothing_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flow runs are sessions of their own: signals to the worker, or to its group, do not reach them."""
    monkeypatch.setattr(serve, "STOP_S", 20.0)
    mark = tmp_path / "mark"
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, FLOW_RUN, STRAY, str(mark)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert worker.stdout is not None
    pids = [worker.stdout.readline().strip() for _ in range(2)]
    end = time.monotonic() + 60
    while not all(mark.with_name(f"mark.{name}").exists() for name in ("up", "stray")):
        assert time.monotonic() < end
        time.sleep(0.05)
    serve._end(worker)
    assert mark.read_text() == "ended its stage" and worker.returncode is not None
    end = time.monotonic() + 10
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))
