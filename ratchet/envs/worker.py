"""The process in which environments run: `python -m ratchet.envs.worker SOCKET_FD PROGRESS_FD`.

It inherits one end of a socket pair and a small shared file. A request is a list of (row, payload), payload being a Task
(reset) or a text (step); the answer is one entry an item, a plain tuple of a Turn's fields or a text that says what was
raised. Before each item the worker counts up in the shared file, so the parent knows which item it was at when it hangs
or dies, without one message a step. The parent's `__main__` is never imported here and nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import pickle
import re
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from ratchet.envs.base import Environment, Task, Turn

LENGTH = struct.Struct("<Q")
PROGRESS = struct.Struct("=Q")
PROTOCOL = 5
PR_SET_PDEATHSIG = 1
LONGEST_REASON = 400

Item = tuple[int, Task | str]
Answer = tuple[str, tuple[str, ...], float, float, bool, bool, bool] | str


class Channel:
    """Pickled messages over a connected socket. A limit is in seconds and None waits for ever (the worker's side only).

    Raises TimeoutError past the limit, EOFError or another OSError where the other end is gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, message: Any, limit_s: float | None = None) -> None:
        data = pickle.dumps(message, protocol=PROTOCOL)
        self.socket.settimeout(limit_s)
        self.socket.sendall(LENGTH.pack(len(data)) + data)

    def receive(self, limit_s: float | None = None) -> Any:
        self.socket.settimeout(limit_s)
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return pickle.loads(self._exactly(length))

    def _exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view, filled = memoryview(data), 0
        while filled < length:
            count = self.socket.recv_into(view[filled:])
            if count == 0:
                raise EOFError("the other end of the channel is closed")
            filled += count
        return data

    def close(self) -> None:
        self.socket.close()


def reason_of(error: BaseException) -> str:
    """One line that is the same in every process: memory addresses are taken out."""
    text = re.sub(r"0x[0-9a-fA-F]+", "0x", f"{type(error).__name__}: {error}")
    return " ".join(text.split())[:LONGEST_REASON]


class Worker:
    """The environments of some rows. A row's environment is kept over its episodes and replaced after it raised."""

    def __init__(self, make: Callable[[], Environment], progress: mmap.mmap, admissible: bool) -> None:
        self.make, self.progress, self.admissible = make, progress, admissible
        # Built before the parent is told "ready": what an environment loads once counts as start-up, not as a step.
        self.spare: Environment | None = make()
        self.environments: dict[int, Environment] = {}
        self.begun = 0

    def play(self, items: list[Item]) -> list[Answer]:
        answers = []
        for row, payload in items:
            self._count()
            answers.append(self._answer(row, payload))
        self._count()  # all items are done: a failure from here on is no row's fault
        return answers

    def _count(self) -> None:
        self.begun += 1
        PROGRESS.pack_into(self.progress, 0, self.begun)

    def _answer(self, row: int, payload: Task | str) -> Answer:
        try:
            return self._fields(self._turn(row, payload))
        except Exception as error:  # noqa: BLE001 - of any environment: it is reported, and ends this row's episode only
            self._drop(row)
            return reason_of(error)

    def _turn(self, row: int, payload: Task | str) -> Turn:
        if isinstance(payload, str):
            if row not in self.environments:
                raise LookupError("no episode is running")
            return self.environments[row].step(payload)
        if row not in self.environments:
            self.environments[row] = self.make() if self.spare is None else self.spare
            self.spare = None
        return self.environments[row].reset(payload)

    def _fields(self, turn: Turn) -> Answer:
        admissible = tuple(turn.admissible) if self.admissible else ()
        return (turn.observation, admissible, float(turn.reward), float(turn.score), bool(turn.solved), bool(turn.done), bool(turn.valid))

    def _drop(self, row: int) -> None:
        environment = self.environments.pop(row, None)
        if environment is not None:
            with contextlib.suppress(Exception):  # its first error is what is reported
                environment.close()

    def close(self) -> None:
        for row in list(self.environments):
            self._drop(row)


def die_with_parent() -> None:
    """Linux: the kernel kills this process when its parent ends, even in the middle of a step that hangs.

    Elsewhere the worker ends at the end of its step, when it reads the end of the socket.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def build(channel: Channel, progress: mmap.mmap, config: dict[str, Any]) -> Worker | None:
    """The worker that `config` asks for, and "ready" to the parent; None where the factory raised, which is told instead."""
    try:
        module, _, name = config["factory"].partition(":")
        factory = getattr(importlib.import_module(module), name)
        worker = Worker(lambda: factory(**config["kwargs"]), progress, config["admissible"])
    except Exception as error:  # noqa: BLE001 - the parent raises it as its own
        channel.send(reason_of(error))
        return None
    channel.send("ready")
    return worker


def main(arguments: list[str]) -> int:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its workers
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    progress = mmap.mmap(int(arguments[1]), PROGRESS.size)
    os.close(int(arguments[1]))
    worker = None
    try:
        worker = build(channel, progress, channel.receive())
        while worker is not None:
            channel.send(worker.play(channel.receive()))
    except (EOFError, ConnectionError):
        pass  # the parent closed its end, which is how it asks for the end
    if worker is not None:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
