"""A benchmark whose environment stops some of its own processes, for real. Imports no torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ratchet.envs.base import Expert, Task, Turn
from ratchet.errors import RatchetError
from ratchet.section import Section
from tests.envs.toy import Toy

NAME = f"{__name__}:Unsteady"
WEATHER = "RATCHET_TEST_WEATHER"


class Stopping(Toy):
    """Stops itself at each action in task 0 to `stopped` - 1, as long as the file is there that the variable WEATHER names."""

    def __init__(self, stopped: int) -> None:
        super().__init__()
        self.stopped = stopped

    def step(self, action: str) -> Turn:
        if int(self.task_id.removeprefix("toy-")) < self.stopped and os.path.exists(os.environ[WEATHER]):
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().step(action)


def make(stopped: int) -> Stopping:
    return Stopping(stopped)


class Up:
    def reset(self, task: Task, turn: Turn) -> None: ...

    def act(self, turn: Turn) -> tuple[str, str]:
        return "", "up"


class Unsteady:
    class Options(Section):
        stopped: int = Field(1, ge=0, description="how many tasks stop their process")

    factory = f"{__name__}:make"

    def prepare(self, folder: Path, settings: Any, counts: Mapping[str, int], seed: int) -> dict[str, list[Task]]:
        raise RatchetError("the test writes the panels")

    def arguments(self, folder: Path, settings: Any, splits: list[str]) -> dict[str, Any]:
        return {"stopped": settings.options.stopped}

    def expert(self, folder: Path) -> Expert:
        return Up()
