"""The running stage at the bottom of a terminal: its time, bars of its progress, and where the time goes."""

import time
from pathlib import Path

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flows.speed import duration, speed_text
from ratchet.store.throughput import record_of
from tasks.progress import Point, read_line

LOOK_S = 1.0  # between two looks at how fast the stage is
BAR = 28  # columns


class Running:
    """Renders a stage that runs; `take` gives it the stage's lines. May be fed from another thread than the one that renders."""

    def __init__(self, workspace: Path | None, name: str, place: int, count: int) -> None:
        self.workspace, self.name, self.title = workspace, name, f"{name}  {place}/{count}"
        self.began = time.monotonic()
        self.spinner = Spinner("dots")
        self.whole: Point | None = None  # progress of the stage itself
        self.part: Point | None = None  # of what it does at the moment
        self.looked, self.speed = 0.0, ""

    def take(self, line: str) -> bool:
        """Whether the line became a bar. Else it has to be printed: it is none, or the end of a part that no other bar will tell."""
        point = read_line(line)
        if point is None:
            return False
        if point.title == self.name:
            self.whole, self.part = point, None
            return True
        self.part = point if point.percent < 100 else None
        return point.percent < 100 or self.whole is not None

    def __rich__(self) -> RenderableType:
        self.spinner.update(text=f"{self.title}  {duration(time.monotonic() - self.began)}")
        rows: list[RenderableType] = [self.spinner]
        points = [point for point in (self.whole, self.part) if point is not None]
        if points:
            bars = Table.grid(padding=(0, 1))
            for point in points:
                text = f"{point.amount}{'  ' + point.note if point.note else ''}"
                part = point.title.removeprefix(self.name).strip()
                bar = ProgressBar(total=100, completed=point.percent, width=BAR)
                bars.add_row(" ", bar, f"{point.percent:3d} %", Text(f"{part + ': ' if part else ''}{text}", overflow="ellipsis", no_wrap=True))
            rows.append(bars)
        if speed := self._speed():
            rows.append(Text(f"  {speed}", style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*rows)

    def _speed(self) -> str:
        now = time.monotonic()
        if self.workspace is not None and now - self.looked >= LOOK_S:
            self.looked = now
            record = record_of(self.workspace, self.name)
            self.speed = speed_text(record) if record is not None else ""
        return self.speed
