"""How fast the running stage is, in logs/throughput/STAGE.json of its workspace: renewed while it runs, final at its end.

A log, never an out: outs hold no clock. Flow and `ratchet sync` take the final one into the registry.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ratchet.clock import CLOCK
from ratchet.files import sha256_json, write_json
from ratchet.settings import Settings
from ratchet.store.throughput import DONE, RUNNING, SCHEMA, machine, path_of

EVERY_S = 3.0  # between two renewals


@dataclass
class _Measured:
    workspace: Path
    stage: str
    settings: Settings
    written: float = 0.0


_measured: _Measured | None = None  # the stage that this process runs; one at a time


def begin(workspace: Path, stage: str, settings: Settings) -> None:
    """From here on the process's clock is this stage's."""
    global _measured
    CLOCK.clear()
    _measured = _Measured(workspace, stage, settings, time.monotonic())


def renew() -> None:
    """Writes what the clock says now, at most every EVERY_S; whoever watches reads it."""
    if _measured is not None and time.monotonic() - _measured.written >= EVERY_S:
        _write(_measured, RUNNING)


def end(workspace: Path, stage: str) -> None:
    """Writes the stage's final record."""
    if _measured is not None and (_measured.workspace, _measured.stage) == (workspace, stage):
        _write(_measured, DONE)
    drop()


def drop() -> None:
    """The stage did not work but only passed a reason on: there is nothing to measure."""
    global _measured
    _measured = None


def _write(one: _Measured, state: str) -> None:
    one.written = time.monotonic()
    record = {
        "schema": SCHEMA,
        "stage": one.stage,
        "state": state,
        "line": one.settings.line,
        "params_hash": sha256_json(one.settings.model_dump(mode="json"))[:12],  # of all: how many play side by side is how fast
        "machine": machine(),
        "threads": _threads(),
        "measured_at": datetime.now(UTC).isoformat(timespec="microseconds"),
        **CLOCK.report(),
    }
    with suppress(OSError):  # a log is not worth a stage; a full disk is told by what has to be written
        write_json(path_of(one.workspace, one.stage), record)


def _threads() -> int | None:
    """Of PyTorch, where this process uses it."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else int(os.environ.get("OMP_NUM_THREADS") or 0) or None
