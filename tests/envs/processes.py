"""The processes of a worker, and one that stands still."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def group(leader: int) -> list[int]:
    """The processes of a worker: itself and what it started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(*pids: int, within_s: float = 10.0) -> bool:
    """Whether all of them end in time; one that nobody has fetched yet is gone."""
    deadline = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def stop(process: int, seconds: float = 10.0) -> None:
    """Sends SIGSTOP and returns when every thread of `process` stands: the signal reaches running threads a moment later."""
    os.kill(process, signal.SIGSTOP)
    deadline = time.monotonic() + seconds
    while any(stat.read_text().rsplit(")", 1)[1].split()[0] != "T" for stat in Path(f"/proc/{process}/task").glob("*/stat")):
        assert time.monotonic() < deadline, f"{process} still runs"
        time.sleep(0.01)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
