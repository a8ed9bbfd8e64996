"""What a person sees while a run goes on: rich on a terminal, plain lines elsewhere, nothing where nobody watches."""

import sys
import time
from contextvars import ContextVar
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from flows.live import Running
from flows.results import Outcome
from flows.speed import duration, measured, speed_text
from flows.stages import StageResult
from ratchet.store.throughput import record_of

SPEED_S = 30.0  # in a log, between two lines that say how fast the running stage is
_DID = {"ran": "", "restored": "from cache", "unchanged": "unchanged"}


class View:
    """Shows nothing; also the interface of the others. `line` may come from another thread."""

    def header(self, run_id: str, workspace: Path, preset: str, stages: list[str]) -> None: ...
    def note(self, text: str) -> None: ...
    def stage_begins(self, name: str, place: int, count: int) -> None: ...
    def line(self, text: str) -> None: ...
    def stage_ends(self, result: StageResult) -> None: ...
    def end(self, outcome: Outcome) -> None: ...
    def close(self) -> None: ...


class PlainView(View):
    """One line an event, for logs and pipes."""

    def __init__(self) -> None:
        self.workspace: Path | None = None
        self.running, self.said = "", time.monotonic()

    def header(self, run_id: str, workspace: Path, preset: str, stages: list[str]) -> None:
        self.workspace = workspace
        self._say(f"run {run_id} ({preset}), {len(stages)} stages, in {workspace}")

    def note(self, text: str) -> None:
        self._say(text)

    def stage_begins(self, name: str, place: int, count: int) -> None:
        self.running, self.said = name, time.monotonic()
        self._say(f"[{place}/{count}] {name}")

    def line(self, text: str) -> None:
        self._say(f"    {text}")
        if self.workspace is not None and time.monotonic() - self.said >= SPEED_S:
            self.said = time.monotonic()
            record = record_of(self.workspace, self.running)
            if record is not None:
                self._say(f"    so far {speed_text(record)}")

    def stage_ends(self, result: StageResult) -> None:
        did = _DID.get(result.state, result.state)
        self._say(f"    took {duration(result.seconds)}{f' ({did})' if did else ''}{_speed(self.workspace, result)}")

    def end(self, outcome: Outcome) -> None:
        for name, value in outcome_rows(outcome):
            self._say(f"{name}: {value}")

    def _say(self, text: str) -> None:
        print(text, flush=True)


class RichView(View):
    """The running stage with its bars at the bottom, everything else above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Live | None = None
        self.running: Running | None = None
        self.workspace: Path | None = None

    def header(self, run_id: str, workspace: Path, preset: str, stages: list[str]) -> None:
        self.workspace = workspace
        self.console.print(f"[bold]{run_id}[/bold]  {preset}, {len(stages)} stages", highlight=False)
        self.console.print(str(workspace), style="dim", highlight=False, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def stage_begins(self, name: str, place: int, count: int) -> None:
        self.close()
        self.running = Running(self.workspace, name, place, count)
        self.live = Live(self.running, console=self.console, transient=True, refresh_per_second=4)
        self.live.start()

    def line(self, text: str) -> None:
        if self.running is None or not self.running.take(text):
            self.console.print(f"  {text}", style="dim", highlight=False, markup=False)

    def stage_ends(self, result: StageResult) -> None:
        self.close()
        did = _DID.get(result.state, result.state)
        self.console.print(f"[green]✓[/green] {result.name:<18} {duration(result.seconds):>8}  [dim]{did}[/dim]", highlight=False)
        if speed := _speed(self.workspace, result):
            self.console.print(f"  {speed.removeprefix(': ')}", style="dim", highlight=False, markup=False)

    def end(self, outcome: Outcome) -> None:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in outcome_rows(outcome):
            table.add_row(f"[bold]{name}[/bold]", value)
        self.console.print()
        self.console.print(table, highlight=False)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


def _speed(workspace: Path | None, result: StageResult) -> str:
    """`: ` and how fast a stage was that ran, where that was measured."""
    record = measured(workspace, result.name) if workspace is not None and result.state == "ran" else None
    return f": {speed_text(record)}" if record is not None else ""


watching: ContextVar[View] = ContextVar("watching", default=View())


def make_view() -> View:
    """The view for standard output."""
    console = Console(file=sys.stdout)
    return RichView(console) if console.is_terminal else PlainView()


def outcome_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Names and texts of the table at the end, without what was not measured."""
    rows = [
        ("warm start", f"{outcome.warm} of the test panel" if outcome.warm else None),
        ("champion", f"{outcome.champion} of the test panel (round {outcome.champion_round})" if outcome.champion else None),
        ("paired gain", outcome.gain),
        *(("decision", text) for text in outcome.decisions),
        ("report", str(outcome.report) if outcome.report else None),
    ]
    return [(name, text) for name, text in rows if text]
