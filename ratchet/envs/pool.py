"""Many environments in worker processes, played in batches; a hang or a crash costs one episode and no result.

Row r lives in worker r % workers, which gets one batch at a time; what is submitted for it meanwhile waits here, so neither end
ever writes to the other while that one writes too. The pool keeps each running episode's task, actions and turns: when a worker is
replaced, its other rows are brought back by playing them again and comparing every turn. So what comes back does not
depend on the number of workers, and a worker that is killed between two steps costs time only.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from ratchet.envs.base import Task, Turn
from ratchet.envs.process import CLOSE_LIMIT_S, Process
from ratchet.envs.worker import Item
from ratchet.errors import RatchetError

BLAMELESS_TRIES = 3  # so often may a worker fail outside of any step before its rows are given up

Kind = Literal["crash", "timeout", "error"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode cannot go on: its process died (`crash`), gave no answer in time (`timeout`), or raised (`error`)."""

    reason: str
    kind: Kind


@dataclass(slots=True)
class _Episode:
    """What brings a running episode back: `turns[0]` follows the reset, `turns[i + 1]` follows `actions[i]`."""

    task: Task
    actions: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


Results = dict[int, Turn | Failure]


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """What was submitted together: its rows in the order asked, and the answers that are here; for `EnvPool.collect`."""

    rows: tuple[int, ...]
    results: Results = field(default_factory=dict)


@dataclass(slots=True)
class _Batch:
    """What one worker has to answer for a ticket: `pending`, sent as `items` behind what brings lost episodes back.

    Beside `items` run `episodes`, whose they are, and `expected`: the turn that has to come again, None for what is new.
    Without items it is not sent.
    """

    index: int
    results: Results  # of its ticket
    pending: dict[int, Task | str] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    episodes: list[_Episode] = field(default_factory=list)
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
        self._processes: dict[int, Process] = {}
        self._episodes: dict[int, _Episode] = {}
        self._queues: dict[int, deque[_Batch]] = {index: deque() for index in range(workers)}  # the first of each is the worker's
        self._open: list[Ticket] = []
        self._lost: dict[int, Failure] = {}  # failed while another row's worker was replaced; told at the row's next step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers; they get two seconds together to close their environments."""
        processes, self._processes = list(self._processes.values()), {}
        self._episodes, self._lost, self._open = {}, {}, []
        for queue in self._queues.values():
            queue.clear()
        for process in processes:
            process.channel.close()
        deadline = time.monotonic() + CLOSE_LIMIT_S
        for process in processes:
            process.kill(max(0.0, deadline - time.monotonic()))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What another process makes a pool of the same environments of."""
        return self.config["factory"], self.config["kwargs"], self.workers, self.step_timeout_s, self.config["admissible"]

    @property
    def counts(self) -> dict[str, int]:
        return {"crashes": self.crashes, "timeouts": self.timeouts, "errors": self.errors, "replaced": self.replaced}

    def pids(self) -> list[int]:
        """Process ids of the workers that run, in the workers' order."""
        return [self._processes[index].popen.pid for index in sorted(self._processes)]

    def reset(self, rows: Sequence[int], tasks: Sequence[Task]) -> list[Turn | Failure]:
        """Starts `tasks[i]` in `rows[i]`, whatever was there before. Answers in the order asked."""
        return self.collect(self.submit(rows, tasks))

    def step(self, rows: Sequence[int], actions: Sequence[str]) -> list[Turn | Failure]:
        """Plays `actions[i]` in `rows[i]`. A row whose episode was done or failed has to be reset first."""
        return self.collect(self.submit(rows, actions))

    def submit(self, rows: Sequence[int], payloads: Sequence[Task | str]) -> Ticket:
        """Lets the workers begin without waiting for them: a Task starts in its row, an action is played there.

        Other tickets may be open beside it, of other rows. Raises RatchetError as `step` does, and for a row of an open ticket.
        """
        wanted = _by_row(rows, payloads)
        asked = {row for ticket in self._open for row in ticket.rows}
        for row, payload in wanted.items():
            if row in asked:
                raise RatchetError(f"row {row} was submitted before; collect that first")
            if isinstance(payload, str) and row not in self._episodes and row not in self._lost:
                raise RatchetError(f"row {row} has no running episode; reset it first")
        ticket = Ticket(tuple(wanted))
        self._open.append(ticket)
        batches: dict[int, _Batch] = {}
        for row, payload in wanted.items():
            if isinstance(payload, Task):
                self._lost.pop(row, None)
                self._episodes[row] = _Episode(payload)
            batches.setdefault(row % self.workers, _Batch(row % self.workers, ticket.results)).pending[row] = payload
        for batch in batches.values():
            self._queues[batch.index].append(batch)
        self._take(0.0)
        self._begin()
        return ticket

    def collect(self, ticket: Ticket) -> list[Turn | Failure]:
        """Waits for the answers, in the order asked. What other tickets want of the same workers has begun by then."""
        if ticket not in self._open:
            raise RatchetError("this ticket was collected before, or its pool was closed; submit again")
        while len(ticket.results) < len(ticket.rows):
            self._take(min(self.step_timeout_s / 4, 1.0))
            self._begin()
        self._open.remove(ticket)
        return [ticket.results[row] for row in ticket.rows]

    def _begin(self) -> None:
        """Sends each worker the first batch of its queue, until all that have one are at it."""
        while waiting := [batch for queue in self._queues.values() if (batch := self._first(queue)) and not batch.items]:
            self._start([batch.index for batch in waiting if batch.index not in self._processes])
            for batch in waiting:
                self._send(batch)

    def _first(self, queue: deque[_Batch]) -> _Batch | None:
        """The first batch that still wants something; rows that were lost while it waited are told so."""
        while queue:
            batch = queue[0]
            for row in batch.pending.keys() & self._lost.keys():
                batch.results[row] = self._lost.pop(row)
                del batch.pending[row]
            if batch.pending:
                return batch
            queue.popleft()
        return None

    def _start(self, indices: list[int]) -> None:
        started = {index: Process(self.config) for index in indices}
        self._processes.update(started)
        for process in started.values():
            process.await_ready()

    def _send(self, batch: _Batch) -> None:
        process = self._processes[batch.index]
        if process.fresh:
            self._add_lost_episodes(batch)
        batch.items += batch.pending.items()
        batch.episodes += [self._episodes[row] for row in batch.pending]
        batch.expected += [None] * len(batch.pending)
        batch.base = batch.seen = process.begun()
        batch.waited_s = 0.0
        try:
            process.channel.send(batch.items, self.step_timeout_s)
        except OSError as error:
            self._failed(batch, timed_out=isinstance(error, TimeoutError))

    def _add_lost_episodes(self, batch: _Batch) -> None:
        for row, episode in self._episodes.items():
            if row % self.workers == batch.index and episode.turns:
                batch.items += [(row, episode.task), *((row, action) for action in episode.actions)]
                batch.episodes += [episode] * len(episode.turns)
                batch.expected += episode.turns

    def _take(self, limit_s: float) -> None:
        """One look, of at most `limit_s`, at all workers that owe an answer: takes answers, ends what has hung for too long."""
        batches = [queue[0] for queue in self._queues.values() if queue and queue[0].items]
        poller = select.poll()
        for batch in batches:
            poller.register(self._processes[batch.index].channel.socket, select.POLLIN)
        begin = time.monotonic()
        ready = {descriptor for descriptor, _ in poller.poll(limit_s * 1000)}
        # At most the limit: where this process itself was stopped for a while, its workers are not to blame.
        elapsed_s = min(time.monotonic() - begin, limit_s)
        for batch in batches:
            process = self._processes[batch.index]
            if process.channel.socket.fileno() in ready:
                self._receive(batch)
            elif process.begun() != batch.seen:
                batch.seen, batch.waited_s = process.begun(), 0.0
            else:
                batch.waited_s += elapsed_s
                if batch.waited_s >= self.step_timeout_s:
                    self._failed(batch, timed_out=True)

    def _receive(self, batch: _Batch) -> None:
        process = self._processes[batch.index]
        try:
            answers = process.channel.receive(self.step_timeout_s)
        except (EOFError, OSError) as error:
            self._failed(batch, timed_out=isinstance(error, TimeoutError))
            return
        process.fresh = False
        for (row, payload), episode, expected, answer in zip(batch.items, batch.episodes, batch.expected, answers, strict=True):
            if self._episodes.get(row) is not episode:
                continue  # it failed earlier in this batch, or the row was reset since
            if isinstance(answer, str):
                self._fail(row, Failure(answer, "error"), batch)
            elif expected is None:
                batch.results[row] = self._record(row, payload, Turn(*answer))
            elif Turn(*answer) != expected:
                self._fail(row, Failure("played again after its process was replaced, it did not repeat itself", "error"), batch)
        batch.pending, batch.items, batch.episodes, batch.expected = {}, [], [], []

    def _record(self, row: int, payload: Task | str, turn: Turn) -> Turn:
        if turn.done:
            del self._episodes[row]
            return turn
        episode = self._episodes[row]
        if isinstance(payload, str):
            episode.actions.append(payload)
        episode.turns.append(turn)
        return turn

    def _failed(self, batch: _Batch, timed_out: bool) -> None:
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
        row = batch.items[begun - 1][0] if 1 <= begun <= len(batch.items) else None
        if row is not None and self._episodes.get(row) is batch.episodes[begun - 1]:
            self._fail(row, failure, batch)
        else:
            batch.blameless += 1
        if batch.blameless >= BLAMELESS_TRIES:
            for row in list(batch.pending):
                self._fail(row, failure, batch)
        batch.items, batch.episodes, batch.expected = [], [], []

    def _fail(self, row: int, failure: Failure, batch: _Batch) -> None:
        self.errors += failure.kind == "error"
        self._episodes.pop(row, None)
        if batch.pending.pop(row, None) is None:
            self._lost[row] = failure
        else:
            batch.results[row] = failure


def _by_row(rows: Sequence[int], payloads: Sequence[Any]) -> dict[int, Any]:
    wanted = dict(zip(rows, payloads, strict=True))
    if len(wanted) != len(rows):
        raise RatchetError("a row is asked for twice in one call")
    return wanted
