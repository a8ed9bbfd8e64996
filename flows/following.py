"""`ratchet watch`: follows a run from another terminal, by its record and the logs of its stages. It only reads."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows import workspace
from flows.commands import root
from flows.results import outcome
from flows.stages import DVC_SAYS, StageResult, log_path
from flows.text import one_line
from flows.view import View, make_view
from ratchet.errors import RatchetError
from ratchet.files import read_json

EVERY_S = 0.5
ATTEMPT = "--- "  # begins the line that a stage's log has for each time the stage was started


class WatchedRunFailed(RatchetError):
    """The run that was watched failed; the text says why and how to go on."""

    exit_code = 1


def watch(run: str | None) -> None:
    """`ratchet watch`: until the run ends. Raises WatchedRunFailed where it does not end well."""
    view = make_view()
    try:
        Follower(choose(root(), run), view).follow()
    except KeyboardInterrupt:
        view.note("no longer watched; the run goes on")
    finally:
        view.close()


def choose(checkout: Path, run: str | None) -> Path:
    """The workspace of a run: the one named, else the newest that is running, else the newest."""
    if run == workspace.HERE:
        return checkout
    if run is not None:
        return workspace.find(checkout, run)
    runs = workspace.list_runs(checkout)
    if not runs:
        raise RatchetError("no runs yet; start one with `ratchet run`, then watch it from another terminal")
    return next((one for one in reversed(runs) if one.state == "running"), runs[-1]).workspace


class Follower:
    """What of a run's record and logs was shown already."""

    def __init__(self, folder: Path, view: View) -> None:
        self.folder, self.view = folder, view
        self.shown = 0  # stages of the present attempt that have ended
        self.running: str | None = None  # the stage whose log is followed
        self.offset = 0

    def follow(self) -> None:
        """Returns when the run has ended. A run that is not running any more is told in short."""
        while not (self.folder / "logs" / "run.json").is_file():
            if not workspace.is_held(self.folder):
                raise RatchetError(f"{self.folder.name}: has not been started; `ratchet run --resume {self.folder.name}`")
            time.sleep(EVERY_S)
        record = self._record()
        self.view.header(record["run_id"], self.folder, record["state"], record["order"])
        while True:
            held = workspace.is_held(self.folder)  # asked before the record is read: what is written until then is in it
            record = self._record()
            self._advance(record, held)
            if not held:
                return self._end(record)
            time.sleep(EVERY_S)

    def _record(self) -> dict[str, Any]:
        return read_json(self.folder / "logs" / "run.json")

    def _advance(self, record: dict[str, Any], held: bool) -> None:
        order, ended = record["order"], record["stages"]
        for place, stage in enumerate(ended[self.shown :], start=self.shown + 1):
            self._begin(stage["name"], place, len(order))
            self._lines()
            self.view.stage_ends(StageResult(stage["name"], stage["state"], stage["seconds"]))
            self.shown, self.running = place, None
        if held and self.shown < len(order):
            self._begin(order[self.shown], self.shown + 1, len(order))
            self._lines()

    def _begin(self, name: str, place: int, count: int) -> None:
        if self.running != name:
            self.running, self.offset = name, _attempt_begins(log_path(self.folder, name))
            self.view.stage_begins(name, place, count)

    def _lines(self) -> None:
        assert self.running is not None
        for line in self._new_lines(log_path(self.folder, self.running)):
            if not DVC_SAYS.fullmatch(line) and not line.startswith(ATTEMPT):
                self.view.line(one_line(line))

    def _new_lines(self, path: Path) -> Iterator[str]:
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole, newline, _ = data.rpartition(b"\n")
        self.offset += len(whole) + len(newline)
        yield from whole.decode(errors="replace").splitlines() if newline else ()

    def _end(self, record: dict[str, Any]) -> None:
        self.view.close()
        state = "killed" if record["state"] == "running" else record["state"]
        if state not in ("finished", "harvested"):
            reason = f": {record['reason']}" if record.get("reason") else ""
            raise WatchedRunFailed(f"{self.folder.name} is {state}{reason}; go on with `ratchet run --resume {self.folder.name}`")
        self.view.end(outcome(self.folder))


def _attempt_begins(path: Path) -> int:
    """Where the last attempt begins in a stage's log, in bytes."""
    data = path.read_bytes() if path.is_file() else b""
    return max(data.rfind(b"\n" + ATTEMPT.encode()) + 1, 0)
