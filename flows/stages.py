"""One stage in a child process: its output streamed and kept, its whole process group ended with the flow.

A child a stage costs about 0.6 s, which is what DVC itself needs to read the graph; in return a stage can be killed, and whatever
it leaked goes with it. The child of the next stage starts while this one runs, so that DVC is imported by then.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flows import child
from flows.quiet import STAGE
from ratchet.errors import RatchetError
from ratchet.store.database import URL_VARIABLE
from ratchet.store.throughput import path_of

GRACE_S = 3.0  # between SIGTERM and SIGKILL
_LOCKED = re.compile(r"ERROR: .*(Unable to acquire lock|is busy, it is being blocked by)")
DVC_SAYS = re.compile(
    r"(Running stage '.*':|> .*|Updating lock file .*|Generating lock file .*|To track the changes with git, run:|\s*git add .*"
    r"|To enable auto staging, run:|\s*dvc config core\.autostage true|Use `dvc push` .*|Data and pipelines are up to date\."
    r"|Stage '.*' didn't change, skipping|Stage '.*' is cached .*|Verifying data sources in .*|ERROR: failed to reproduce .*)?"
)


class StageFailed(RatchetError):
    """A stage, or DVC around it, exited with an error; the text is one line."""


class StageLocked(StageFailed):
    """Another DVC process held a lock for longer than DVC waits (3 s, hard-coded). The only failure worth a retry."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """What DVC did: `ran`, `restored` (outs taken from the cache) or `unchanged` (nothing to do); `seconds` of wall-clock."""

    name: str
    state: str
    seconds: float


def log_path(workspace: Path, name: str) -> Path:
    return workspace / "logs" / f"{name}.log"


def run_stage(
    workspace: Path, name: str, on_line: Callable[[str], None], keys: Mapping[str, str] | None = None, *, more: bool = False
) -> StageResult:
    """`dvc repro -s NAME` in `workspace`. `on_line` gets each line the stage itself writes, from a thread of its own.

    `keys` are environment variables for this stage alone. With `more` to come a child gets ready for the next stage meanwhile; whoever
    says so lets it go by `dismiss` in the end.

    All output, DVC's included, is appended to logs/NAME.log. Raises StageLocked or StageFailed; ends the child's process group
    within GRACE_S (+ 1 s) when interrupted, and always before it returns.
    """
    began = time.monotonic()
    path = log_path(workspace, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path_of(workspace, name).unlink(missing_ok=True)  # how fast an earlier attempt was; one that ended is in the registry
    tail: deque[str] = deque(maxlen=60)
    process = _told(_taken() or _waiting(), workspace, ["repro", "-s", name], keys or {})
    if more:
        _next.append(_waiting())
    reader = threading.Thread(target=_read, args=(process, path, tail, on_line), daemon=True)
    reader.start()
    try:
        code = process.wait()
    finally:
        with _deaf_to_interrupts():  # a second Ctrl-C must not leave the stage behind
            end_group(process)
            reader.join(timeout=2)
    if code:
        raise _failure(name, code, list(tail))
    return StageResult(name, _state(list(tail)), round(time.monotonic() - began, 3))


_next: "list[subprocess.Popen[str]]" = []
"""The child that waits for the next stage, or nothing."""


def dismiss() -> None:
    """Lets a child go that waits for a stage which will not come."""
    while _next:
        end_group(_next.pop())


def _taken() -> "subprocess.Popen[str] | None":
    process = _next.pop() if _next else None
    return process if process is not None and process.poll() is None else None


def _waiting() -> "subprocess.Popen[str]":
    """A child that imports DVC and waits."""
    return subprocess.Popen(
        [sys.executable, "-P", child.__file__, child.WAITING],  # -P keeps flows/ itself out of the module path
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _told(process: "subprocess.Popen[str]", workspace: Path, arguments: list[str], keys: Mapping[str, str]) -> "subprocess.Popen[str]":
    """The child with its task. The pipe stays open: its end is how the child knows that the flow is gone."""
    assert process.stdin is not None  # a pipe was asked for
    process.stdin.write(json.dumps({"folder": str(workspace), "arguments": arguments, "environment": dict(keys)}) + "\n")
    process.stdin.flush()
    return process


def end_group(process: "subprocess.Popen[str]") -> None:
    """SIGTERM to the child and all that it started, SIGKILL to what is left after GRACE_S."""
    deadline = time.monotonic() + (GRACE_S if process.poll() is None else 0)
    _signal_group(process.pid, signal.SIGTERM)
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait(timeout=1)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # nobody is left in it


def _environment() -> dict[str, str]:
    # DVC runs `python -m tasks.…` in a shell: it must be this Python, also where no virtual environment is activated.
    here = os.path.dirname(sys.executable)
    path = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
    # And no stage needs the database, so none gets to see its password.
    hidden = ("GIT_", "DVC_ROOT", "DVC_STAGE", URL_VARIABLE)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**inherited, **STAGE, "PATH": path}


def _read(process: "subprocess.Popen[str]", path: Path, tail: deque[str], on_line: Callable[[str], None]) -> None:
    assert process.stdout is not None  # a pipe was asked for
    # A full disk must not stop the reading, for the stage would wait for it for ever.
    with path.open("ab", buffering=0) as log:
        _keep(log, f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        for raw in process.stdout:
            _keep(log, raw)
            line = raw.rstrip()
            tail.append(line)
            if not DVC_SAYS.fullmatch(line):
                on_line(line)


def _keep(log: io.RawIOBase, text: str) -> None:
    with suppress(OSError):
        log.write(text.encode())


def _state(tail: list[str]) -> str:
    text = "\n".join(tail)
    if re.search(r"^Stage '.*' didn't change, skipping$", text, re.MULTILINE):
        return "unchanged"
    return "restored" if re.search(r"^Stage '.*' is cached - skipping run", text, re.MULTILINE) else "ran"


def _failure(name: str, code: int, tail: list[str]) -> StageFailed:
    text = "\n".join(tail)
    said = [line for line in tail if line.strip() and not DVC_SAYS.fullmatch(line)]
    by_dvc = [line.removeprefix("ERROR: ") for line in tail if line.startswith("ERROR: ")]
    if _LOCKED.search(text):
        return StageLocked(f"{name}: {by_dvc[-1]}")
    if any("failed to run:" in line for line in by_dvc) or not by_dvc:
        return StageFailed(f"{name}: {said[-1].strip() if said else f'exited with code {code} and said nothing'}")
    return StageFailed(f"{name}: {by_dvc[-1]}")
