"""Processes that play a model's shards side by side, each with a copy of the model and environment workers of its own.

A small model's decoding hardly gets faster with more threads, so on several cores several shards are played at once instead. A shard
gives the same bytes whoever plays it, as long as the number of torch threads is the same.

A player is `python -m ratchet.rollout.player SOCKET_FD`; it ends when its socket is closed or its parent has died.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ratchet.clock import CLOCK
from ratchet.envs.pool import EnvPool
from ratchet.envs.process import CLOSE_LIMIT_S, child_environment
from ratchet.envs.worker import Channel
from ratchet.errors import RatchetError
from ratchet.rollout.play import Job, OnEpisode, Tables

ANSWER_LIMIT_S = 30.0  # for a message that has begun to come


@dataclass(frozen=True)
class Order:
    """A shard to play: `policy` is built by its `policy()` (ratchet/policies/language_model.py), `pool` are EnvPool's arguments."""

    policy: Any
    pool: tuple[Any, ...]
    jobs: Sequence[Job]
    limits: dict[str, Any]


class Players:
    """`count` processes with `threads` torch threads each (None: as many as torch takes)."""

    def __init__(self, count: int, threads: int | None) -> None:
        """Starts them; they import what they need while the caller goes on."""
        self.processes = [_Player(threads) for _ in range(count)]

    def play(
        self, shards: Iterable[Sequence[Job]], policy: Any, pool: EnvPool, limits: dict[str, Any], on_episode: OnEpisode | None = None
    ) -> Iterator[tuple[int, Tables]]:
        """Plays all shards and yields (place of the shard, its tables) as each is done; `on_episode` hears `solved` of each episode.

        Raises RatchetError where a player refused its order or ended.
        """
        waiting = enumerate(shards)
        busy: dict[_Player, int] = {}
        while True:
            for player in self.processes:
                if player not in busy and (following := next(waiting, None)) is not None:
                    busy[player], jobs = following
                    player.send(Order(policy, pool.arguments, jobs, limits))
            if not busy:
                return
            for player in _ready(busy):
                kind, value = player.receive()
                if kind == "episode":
                    if on_episode is not None:
                        on_episode(value)
                elif kind == "shard":
                    place = busy.pop(player)
                    self._count(value)
                    yield place, (_table(value["episodes"]), _table(value["steps"]))
                else:
                    raise RatchetError(value)

    def _count(self, value: dict[str, Any]) -> None:
        """Adds a player's work to the clock of this process; seconds are shared out, since players work at the same time."""
        CLOCK.counts.update(value["counts"])
        CLOCK.seconds.update({name: seconds / len(self.processes) for name, seconds in value["seconds"].items()})
        CLOCK.beside_mb = max(CLOCK.beside_mb, sum(player.peak_mb for player in self.processes))

    def close(self) -> None:
        for player in self.processes:
            player.channel.close()
        for player in self.processes:
            player.end()


class _Player:
    """One process and this end of its channel."""

    def __init__(self, threads: int | None) -> None:
        mine, theirs = socket.socketpair()
        environment = child_environment() | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
        with theirs:
            # Own session: Ctrl-C reaches the parent only, which then ends its players.
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "ratchet.rollout.player", str(theirs.fileno()), str(threads or 0)],
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.channel = Channel(mine)
        self.peak_mb = 0.0

    def send(self, order: Order) -> None:
        try:
            self.channel.send(order)
        except OSError:
            raise self._ended() from None

    def receive(self) -> tuple[str, Any]:
        try:
            kind, value = self.channel.receive(ANSWER_LIMIT_S)
        except (EOFError, OSError):
            raise self._ended() from None
        if kind == "shard":
            self.peak_mb = value["peak_mb"]
        return kind, value

    def _ended(self) -> RatchetError:
        try:
            code = self.popen.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            return RatchetError("a player stopped answering; see the lines above, then go on with `ratchet run --resume ID`")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return RatchetError(
            f"a process that played a shard ended ({how}); see the lines above (memory? lower env.players), then go on with "
            "`ratchet run --resume ID`, which plays what is missing"
        )

    def end(self) -> None:
        try:
            self.popen.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def _ready(players: Iterable[_Player]) -> list[_Player]:
    """Waits until at least one has something to say."""
    by_descriptor = {player.channel.socket.fileno(): player for player in players}
    poller = select.poll()
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poller.poll()]


def table_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _table(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """So many threads inside; the results of a rollout may depend on it in their last bits."""
    if count is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
