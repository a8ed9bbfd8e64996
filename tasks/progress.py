"""Lines of progress: what a stage prints while it works, and how whoever watches reads them again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks import throughput

_LINE = re.compile(r"(?P<title>\S.*?) (?P<percent>\d{1,3})% (?P<amount>\S+/\S+ \w+, \S+/(?:s|min)(?:, \S+ left)?)(?:  (?P<note>.*))?")


@dataclass(frozen=True, slots=True)
class Point:
    """One line of progress: of what (a stage's name, or that and a part of it), how far in percent, how much, and a note."""

    title: str
    percent: int
    amount: str
    note: str


def read_line(line: str) -> Point | None:
    """What a line of `Progress` says; None for any other line."""
    found = _LINE.fullmatch(line)
    return None if found is None else Point(found["title"], min(int(found["percent"]), 100), found["amount"], found["note"] or "")


def say(text: str) -> None:
    print(text, flush=True)


class Progress:
    """Lines of progress with rate and time left, at most one every `every_s` seconds.

    `first`: how much was done already when this began, so that a resumed stage's rate counts its own work alone; None where only the
    first call can tell.
    """

    def __init__(self, title: str, total: int, unit: str, every_s: float = 5.0, first: int | None = 0) -> None:
        self.title, self.total, self.unit, self.every_s, self.first = title, total, unit, every_s, first
        self.began = self.said = time.monotonic()

    def found(self, amount: int) -> None:
        """So much of what is counted next was done by an earlier attempt."""
        self.first = (self.first or 0) + amount

    def __call__(self, done: int, note: str = "") -> None:
        throughput.renew()
        now = time.monotonic()
        if self.first is None:
            self.first, self.began = done, now
        if done < self.total and now - self.said < self.every_s:
            return
        self.said = now
        rate = (done - self.first) / max(now - self.began, 1e-9)
        left = f", {_duration((self.total - done) / rate)} left" if rate > 0 and done < self.total else ""
        say(f"{self.title} {100 * done // max(self.total, 1)}% {_short(done)}/{_short(self.total)} {self.unit}, {_rate(rate)}{left}{'  ' + note if note else ''}")


def by_steps(title: str, said: Callable[[dict[str, Any]], str]) -> Callable[[int, int, dict[str, Any]], None]:
    """Lines of progress for a trainer that tells (steps done, in all, a point of its curve), the first of which may follow earlier ones."""
    bars: list[Progress] = []

    def tell(done: int, total: int, point: dict[str, Any]) -> None:
        if not bars:
            bars.append(Progress(title, total, "steps", first=None))
        bars[0](done, said(point))

    return tell


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{letter}"
    return f"{value:.1f}" if isinstance(value, float) and value < 10 else f"{value:.0f}"


def _rate(rate: float) -> str:
    """`rate` is a second; what takes long is told by the minute."""
    return f"{_short(60 * rate)}/min" if 0 < rate < 0.1 else f"{_short(rate)}/s"


def _duration(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"
