"""A process that plays shards for its parent: `python -m ratchet.rollout.player SOCKET_FD THREADS` (ratchet/rollout/players.py).

It keeps its last model and its last environments, since the next order mostly wants the same.
"""

from __future__ import annotations

import signal
import socket
import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ratchet.clock import CLOCK, peak_memory_mb
from ratchet.envs.pool import EnvPool
from ratchet.envs.worker import Channel, die_with_parent
from ratchet.errors import RatchetError
from ratchet.rollout.play import play
from ratchet.rollout.players import Order, table_bytes


class Player:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.spec: Any = None
        self.policy: Any = None
        self.pool: EnvPool | None = None

    def play(self, order: Order) -> None:
        CLOCK.clear()
        policy, pool = self._policy(order.policy), self._pool(order.pool)
        episodes, steps = play(order.jobs, policy, pool, **order.limits, on_episode=self._tell)
        memory = peak_memory_mb()
        tables = {"episodes": table_bytes(episodes), "steps": table_bytes(steps)}
        self.channel.send(("shard", {**tables, "seconds": dict(CLOCK.seconds), "counts": dict(CLOCK.counts), "peak_mb": memory}))

    def _tell(self, row: dict[str, Any]) -> None:
        self.channel.send(("episode", {"solved": row["solved"]}))

    def _policy(self, spec: Any) -> Any:
        """The policy of `spec`; weights that are another version of the same model's go into the model that is there."""
        if spec != self.spec:
            alike = self.spec is not None and spec.weights is not None and replace(self.spec, version="", weights=None) == replace(
                spec, version="", weights=None
            )
            if alike:
                from ratchet.models.build import lay_weights

                lay_weights(spec.weights, self.policy.engine.model)
                self.policy.version = spec.version
            else:
                self.policy = spec.policy()
            self.spec = spec
        return self.policy

    def _pool(self, arguments: tuple[Any, ...]) -> EnvPool:
        if self.pool is None or self.pool.arguments != arguments:
            self.close()
            self.pool = EnvPool(*arguments)
        return self.pool

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()


def main(arguments: list[str]) -> int:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its players
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    import torch
    from transformers import PreTrainedTokenizerFast  # noqa: F401 - what takes seconds is imported before the first order comes

    import ratchet.engines.local  # noqa: F401

    if threads := int(arguments[1]):
        torch.set_num_threads(threads)
        pa.set_cpu_count(threads)
    player = Player(channel)
    try:
        while True:
            order = channel.receive()
            try:
                player.play(order)
            except RatchetError as error:
                channel.send(("refused", str(error)))
    except (EOFError, ConnectionError):
        return 0  # the parent closed its end, which is how it asks for the end
    finally:
        player.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
