"""Many environments in worker processes, played in batches; a hang or a crash costs one episode and no result.

Row r lives in worker r % workers. The pool keeps each running episode's task, actions and turns: when a worker is
replaced, its other rows are brought back by playing them again and comparing every turn. So what comes back does not
depend on the number of workers, and a worker that is killed between two steps costs time only.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from ratchet.envs.base import Task, Turn
from ratchet.envs.worker import PROGRESS, Channel, Item
from ratchet.errors import RatchetError
from ratchet.policies.served_settings import SECRET

START_LIMIT_S = 120.0  # an environment's imports and what it loads once
CLOSE_LIMIT_S = 2.0
BLAMELESS_TRIES = 3  # so often may a worker fail outside of any step before its rows are given up

Kind = Literal["crash", "timeout", "error"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode cannot go on: its process died (`crash`), gave no answer in time (`timeout`), or raised (`error`)."""

    reason: str
    kind: Kind


class _Process:
    """One worker process and the parent's ends of its channel and progress counter."""

    def __init__(self, config: dict[str, Any]) -> None:
        mine, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as shared, theirs:
            shared.write(bytes(PROGRESS.size))
            shared.flush()
            self.progress = mmap.mmap(shared.fileno(), PROGRESS.size)
            command = [sys.executable, "-P", "-m", "ratchet.envs.worker", str(theirs.fileno()), str(shared.fileno())]
            # Own session: Ctrl-C reaches the parent only, and whatever the environment starts can be ended with it.
            self.popen = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(), shared.fileno()),
                env=_child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.channel = Channel(mine)
        self.config = config
        self.fresh = True  # until its first answer: episodes that live in it have to be brought back

    def await_ready(self) -> None:
        """Raises RatchetError where the environment cannot be built."""
        try:
            self.channel.send(self.config, START_LIMIT_S)
            answer = self.channel.receive(START_LIMIT_S)
        except (EOFError, OSError) as error:
            self.kill()
            what = "was not ready in time" if isinstance(error, TimeoutError) else f"ended at start ({self.ending()})"
            raise RatchetError(f"environment {self.config['factory']} {what}; see the lines above") from error
        if answer != "ready":
            self.kill()
            raise RatchetError(f"environment {self.config['factory']}({self.config['kwargs']}) cannot be built: {answer}")

    def begun(self) -> int:
        """How many items (and ends of batches) the worker has counted."""
        return PROGRESS.unpack_from(self.progress, 0)[0]

    def ending(self) -> str:
        code = self.popen.returncode
        return "still running" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"

    def kill(self, grace_s: float = 0.0) -> None:
        """Ends the process and all that it started; waits `grace_s` for it to end by itself (the channel is closed)."""
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group has ended
            os.killpg(self.popen.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it goes when the kernel lets it
            self.popen.wait(CLOSE_LIMIT_S)
        self.progress.close()


def _child_environment() -> dict[str, str]:
    """The parent's import path, and a fixed hash seed: an order of a set must not differ between workers. No keys of served models."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(SECRET)}
    return {**inherited, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}


@dataclass(slots=True)
class _Episode:
    """What brings a running episode back: `turns[0]` follows the reset, `turns[i + 1]` follows `actions[i]`."""

    task: Task
    actions: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """What one worker has to answer: `pending`, sent as `items` behind what brings lost episodes back.

    `expected` runs beside `items`: the turn that has to come again, None for what is new. Without items it is not sent.
    """

    index: int
    pending: dict[int, Task | str] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    expected: list[Turn | None] = field(default_factory=list)
    base: int = 0  # the worker's count before this batch
    seen: int = 0  # its count when last looked at
    waited_s: float = 0.0  # since it was last seen to change
    blameless: int = 0  # failures that were no row's


class EnvPool:
    """Environments of `factory` ("module:callable", called with `kwargs` in the worker) in `workers` processes.

    `step_timeout_s` is for each single reset or step. `admissible` asks for the lists of admissible commands, which
    cost more than all the rest and which a language model never sees. Processes start when they are first needed, all
    together. `crashes`, `timeouts`, `errors` (raised, or not the same when played again) and `replaced` count.
    To be used from one thread: on Linux the workers end with the thread that started them.
    """

    def __init__(
        self, factory: str, kwargs: dict[str, Any], workers: int, step_timeout_s: float, admissible: bool = False
    ) -> None:
        if workers < 1:
            raise RatchetError(f"env.workers: {workers}; at least 1 is needed")
        if step_timeout_s <= 0:
            raise RatchetError(f"env.step_timeout_s: {step_timeout_s}; a time above 0 is needed")
        self.config = {"factory": factory, "kwargs": kwargs, "admissible": admissible}
        self.workers, self.step_timeout_s = workers, step_timeout_s
        self.crashes = self.timeouts = self.errors = self.replaced = 0
        self._processes: dict[int, _Process] = {}
        self._episodes: dict[int, _Episode] = {}
        self._lost: dict[int, Failure] = {}  # failed while another row's worker was replaced; told at the row's next step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers; they get two seconds together to close their environments."""
        processes, self._processes = list(self._processes.values()), {}
        self._episodes, self._lost = {}, {}
        for process in processes:
            process.channel.close()
        deadline = time.monotonic() + CLOSE_LIMIT_S
        for process in processes:
            process.kill(max(0.0, deadline - time.monotonic()))

    @property
    def counts(self) -> dict[str, int]:
        return {"crashes": self.crashes, "timeouts": self.timeouts, "errors": self.errors, "replaced": self.replaced}

    def pids(self) -> list[int]:
        """Process ids of the workers that run, in the workers' order."""
        return [self._processes[index].popen.pid for index in sorted(self._processes)]

    def reset(self, rows: Sequence[int], tasks: Sequence[Task]) -> list[Turn | Failure]:
        """Starts `tasks[i]` in `rows[i]`, whatever was there before. Answers in the order asked."""
        wanted = _by_row(rows, tasks)
        for row, task in wanted.items():
            self._lost.pop(row, None)
            self._episodes[row] = _Episode(task)
        return self._play(wanted)

    def step(self, rows: Sequence[int], actions: Sequence[str]) -> list[Turn | Failure]:
        """Plays `actions[i]` in `rows[i]`. A row whose episode was done or failed has to be reset first."""
        wanted = _by_row(rows, actions)
        for row in wanted:
            if row not in self._episodes and row not in self._lost:
                raise RatchetError(f"row {row} has no running episode; reset it first")
        return self._play(wanted)

    def _play(self, wanted: Mapping[int, Task | str]) -> list[Turn | Failure]:
        results: dict[int, Turn | Failure] = {row: self._lost.pop(row) for row in wanted if row in self._lost}
        batches: dict[int, _Batch] = {}
        for row, payload in wanted.items():
            if row not in results:
                batches.setdefault(row % self.workers, _Batch(row % self.workers)).pending[row] = payload
        running = list(batches.values())
        while running:
            self._start([batch.index for batch in running if batch.index not in self._processes])
            for batch in running:
                if not batch.items:
                    self._send(batch, results)
            self._wait([batch for batch in running if batch.items], results)
            running = [batch for batch in running if batch.pending]
        return [results[row] for row in wanted]

    def _start(self, indices: list[int]) -> None:
        started = {index: _Process(self.config) for index in indices}
        self._processes.update(started)
        for process in started.values():
            process.await_ready()

    def _send(self, batch: _Batch, results: dict[int, Turn | Failure]) -> None:
        process = self._processes[batch.index]
        if process.fresh:
            self._add_lost_episodes(batch)
        batch.items += batch.pending.items()
        batch.expected += [None] * len(batch.pending)
        batch.base = batch.seen = process.begun()
        batch.waited_s = 0.0
        try:
            process.channel.send(batch.items, self.step_timeout_s)
        except OSError as error:
            self._failed(batch, results, timed_out=isinstance(error, TimeoutError))

    def _add_lost_episodes(self, batch: _Batch) -> None:
        for row, episode in self._episodes.items():
            if row % self.workers == batch.index and episode.turns:
                batch.items += [(row, episode.task), *((row, action) for action in episode.actions)]
                batch.expected += episode.turns

    def _wait(self, batches: list[_Batch], results: dict[int, Turn | Failure]) -> None:
        """One look at all workers that owe an answer: takes answers, ends what has hung for too long."""
        poller = select.poll()
        for batch in batches:
            poller.register(self._processes[batch.index].channel.socket, select.POLLIN)
        interval_s = min(self.step_timeout_s / 4, 1.0)
        begin = time.monotonic()
        ready = {descriptor for descriptor, _ in poller.poll(interval_s * 1000)}
        # At most the interval: where this process itself was stopped for a while, its workers are not to blame.
        elapsed_s = min(time.monotonic() - begin, interval_s)
        for batch in batches:
            process = self._processes[batch.index]
            if process.channel.socket.fileno() in ready:
                self._receive(batch, results)
            elif process.begun() != batch.seen:
                batch.seen, batch.waited_s = process.begun(), 0.0
            else:
                batch.waited_s += elapsed_s
                if batch.waited_s >= self.step_timeout_s:
                    self._failed(batch, results, timed_out=True)

    def _receive(self, batch: _Batch, results: dict[int, Turn | Failure]) -> None:
        process = self._processes[batch.index]
        try:
            answers = process.channel.receive(self.step_timeout_s)
        except (EOFError, OSError) as error:
            self._failed(batch, results, timed_out=isinstance(error, TimeoutError))
            return
        process.fresh = False
        for (row, payload), expected, answer in zip(batch.items, batch.expected, answers, strict=True):
            if row not in self._episodes:
                continue  # it failed earlier in this batch
            if isinstance(answer, str):
                self._fail(row, Failure(answer, "error"), batch, results)
            elif expected is None:
                results[row] = self._record(row, payload, Turn(*answer))
            elif Turn(*answer) != expected:
                self._fail(row, Failure("played again after its process was replaced, it did not repeat itself", "error"), batch, results)
        batch.pending, batch.items, batch.expected = {}, [], []

    def _record(self, row: int, payload: Task | str, turn: Turn) -> Turn:
        if turn.done:
            del self._episodes[row]
            return turn
        episode = self._episodes[row]
        if isinstance(payload, str):
            episode.actions.append(payload)
        episode.turns.append(turn)
        return turn

    def _failed(self, batch: _Batch, results: dict[int, Turn | Failure], timed_out: bool) -> None:
        """The worker died or hangs: ends it, fails the row that it was at; the next look sends the rest to a new one."""
        process = self._processes.pop(batch.index)
        begun = process.begun() - batch.base
        process.kill(grace_s=0.0 if timed_out else CLOSE_LIMIT_S)  # a dying process is left its own exit code
        if timed_out:
            self.timeouts += 1
            failure = Failure(f"no answer within {self.step_timeout_s:g} s", "timeout")
        else:
            self.crashes += 1
            failure = Failure(f"its process ended ({process.ending()})", "crash")
        self.replaced += 1
        if 1 <= begun <= len(batch.items):
            self._fail(batch.items[begun - 1][0], failure, batch, results)
        else:
            batch.blameless += 1
        if batch.blameless >= BLAMELESS_TRIES:
            for row in list(batch.pending):
                self._fail(row, failure, batch, results)
        batch.items, batch.expected = [], []

    def _fail(self, row: int, failure: Failure, batch: _Batch, results: dict[int, Turn | Failure]) -> None:
        self.errors += failure.kind == "error"
        self._episodes.pop(row, None)
        if batch.pending.pop(row, None) is None:
            self._lost[row] = failure
        else:
            results[row] = failure


def _by_row(rows: Sequence[int], payloads: Sequence[Any]) -> dict[int, Any]:
    wanted = dict(zip(rows, payloads, strict=True))
    if len(wanted) != len(rows):
        raise RatchetError("a row is asked for twice in one call")
    return wanted
