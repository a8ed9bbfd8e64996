"""Where the time of a process goes: seconds by phase, and counts. Never part of an out.

Phases nest; the time inside an inner one is not counted for the outer. Counted is what the main thread does: work of other threads
beside it is free until somebody waits for it.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PHASES = ("environment", "reading", "decoding", "learning", "scoring")
"""environment: waiting for environments · reading: new tokens of observations · decoding: generated tokens · learning: forward and
backward passes and optimiser steps · scoring: log-probs without a gradient."""

COUNTS = {"reading": "tokens_read", "decoding": "tokens_generated", "learning": "tokens_learned"}
"""What a phase gets through: its rate is this count by its seconds."""


class Clock:
    """Seconds of each phase and counts (`tokens_read`, `tokens_generated`, `tokens_learned`, …) since `clear`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.began = time.monotonic()
        self.seconds: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.beside_mb = 0.0  # peak memory of processes that do this one's work (ratchet/rollout/players.py)
        self._open: list[str] = []
        self._since = self.began

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        now = time.monotonic()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def report(self) -> dict[str, Any]:
        """`wall_s`, `seconds` of each phase and of `other`, `counts`, tokens a second of the phase that makes them, `peak_memory_mb`."""
        wall_s = time.monotonic() - self.began
        seconds = {name: self.seconds[name] for name in PHASES if self.seconds[name]}
        rates = {
            f"{name}_tokens_per_s": self.counts[count] / self.seconds[name]
            for name, count in COUNTS.items()
            if self.seconds[name] and self.counts[count]
        }
        other = max(0.0, wall_s - sum(seconds.values()))
        return {"wall_s": wall_s, "seconds": {**seconds, "other": other}, "counts": dict(self.counts), **rates, "peak_memory_mb": peak_memory_mb() + self.beside_mb}


def peak_memory_mb() -> float:
    """Most memory that this process has held (resident), in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes on Linux, bytes on macOS
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


CLOCK = Clock()
