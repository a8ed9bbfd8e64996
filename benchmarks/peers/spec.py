"""What is measured, as both sides are told it, and how a measurement is started in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.quiet import STAGE
from ratchet.errors import RatchetError

CHECKOUT = Path(__file__).parents[2]
MARK = "result: "


@dataclass(frozen=True)
class Iteration:
    """A GRPO iteration on `tasks` × `samples` episodes of `turns` turns: rollouts and one optimiser step on all of them."""

    folder: str  # of `make_world`
    turns: int
    tasks: int
    samples: int
    read: int = 50  # tokens a turn
    write: int = 10
    iterations: int = 1  # that are timed, behind one of two turns that warms up
    bf16: bool = False  # autocast
    batch: int = 8  # TRL: episodes of a micro-batch
    continuous: bool = False  # TRL: generates by transformers' continuous batching
    batch_tokens: int = 4096  # ours: tokens of a micro-batch
    workers: int = 1  # ours: environment processes of each player
    players: int = 2  # ours: processes that play, one torch thread each
    lr: float = 1e-4
    seed: int = 1

    @property
    def episodes(self) -> int:
        return self.tasks * self.samples

    @property
    def tokens(self) -> int:
        """Of an episode at most."""
        return self.turns * (self.read + self.write)


@dataclass(frozen=True)
class Decoding:
    """`new` tokens for each of `rows` prompts of `prompt` tokens, `rounds` times by each side."""

    folder: str  # of `make_world`
    rows: int = 32
    prompt: int = 64
    new: int = 128
    rounds: int = 5
    players: int = 2


@dataclass(frozen=True)
class Learning:
    """One update on synthetic episodes: `lengths` from the first to the second number of tokens."""

    folder: str  # of `make_world`
    episodes: int
    lengths: tuple[int, int]
    bf16: bool = False
    batch_tokens: int = 4096


@dataclass(frozen=True)
class Training(Iteration):
    """`iterations` of GRPO from the model in `folder/start` with seed `seed`, in `steps` optimiser steps each, into `folder/out`."""

    read: int = 40
    write: int = 48  # at most
    start: str = "warm"
    out: str = "out"
    steps: int = 2
    max_invalid: int = 3


@dataclass(frozen=True)
class WarmStart:
    """Games of both splits, a tokenizer and a model that imitated an expert for `tokens` tokens, into `folder`."""

    folder: str
    train: int
    held_out: int
    rooms: int
    tokens: int
    turns: int


@dataclass(frozen=True)
class Evaluation:
    """The model in `folder/model` on the held-out games, greedy."""

    folder: str
    model: str
    turns: int
    max_reply: int = 48
    max_invalid: int = 3


THREADS = {name: STAGE[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
"""A peer gains from them as well; whatever the caller's shell says would be another measurement."""


def in_process(side: str, spec: Any) -> dict[str, Any]:
    """Runs `benchmarks.peers.SIDE.measure(spec)` (or `MODULE:FUNCTION`) in a new process and returns what it measured.

    Raises RatchetError with the end of what the process said where it fails.
    """
    command = [sys.executable, "-m", "benchmarks.peers.child", side, type(spec).__name__, json.dumps(asdict(spec))]
    quiet = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    return result_of(command, quiet, f"the measuring process for {side}")


def result_of(command: list[str], environment: dict[str, str], what: str) -> Any:
    """What a measuring process, whose threads wait as a stage's do, prints behind MARK. Raises RatchetError, naming `what` it is, with the
    end of what it said where it fails."""
    done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **THREADS, **environment}, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        end = "\n".join((done.stderr or done.stdout).splitlines()[-12:])
        raise RatchetError(f"{what} ended with {done.returncode}; its last lines:\n{end}")
    return json.loads(lines[-1][len(MARK) :])


def peak_mb(pids: tuple[int, ...] = ()) -> float:
    """Most memory that this process has held (resident), in MB, and that of the processes `pids` on top."""
    return sum(_status_mb(str(pid), "VmHWM") for pid in ("self", *pids))


def resident_mb() -> float:
    """Memory that this process holds now, in MB; `peak_mb` counts anew from here."""
    with contextlib.suppress(OSError):  # where the kernel does not let us, the peak is that of the whole process: never too small
        Path("/proc/self/clear_refs").write_text("5")
    return _status_mb("self", "VmRSS")


def on_top_mb(before: float) -> float:
    """What the peak is above `before`, which `resident_mb` said; not below 0: the kernel sums the two from counters that differ by some pages."""
    return max(peak_mb() - before, 0.0)


def _status_mb(pid: str, name: str) -> float:
    status = Path(f"/proc/{pid}/status")
    if not status.is_file():
        raise RatchetError("memory is read from /proc, which this system does not have; measure on Linux")
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name)) / 1000
