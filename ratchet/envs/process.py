"""A worker as its parent sees it: started in a session of its own, asked over its channel, ended with all that it started."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

from ratchet.envs.worker import PROGRESS, Channel
from ratchet.errors import RatchetError
from ratchet.policies.served_settings import SECRET

START_LIMIT_S = 120.0  # an environment's imports and what it loads once
CLOSE_LIMIT_S = 2.0


class Process:
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
                env=child_environment(),
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


def child_environment() -> dict[str, str]:
    """The parent's import path, and a fixed hash seed: an order of a set must not differ between workers. No keys of served models."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(SECRET)}
    return {**inherited, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
