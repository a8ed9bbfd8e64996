"""Environments that do as they are told, for tests of what happens around an environment. Imports no torch."""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.envs.base import Task, Turn


def task(number: int, seed: int = 0) -> Task:
    return Task("toy", "1", f"toy-{number}", "train", "count", f"room-{number % 3}", seed)


@dataclass
class Toy:
    """Counts to `goal` with "up"; the task's number is the first value. The history is in every observation.

    Actions that misbehave: "exit" ends the process, "hang" sleeps, "raise" raises, "nested" prints and raises SystemExit.
    With `once` (a folder) "exit" and "hang" leave a mark there and behave after it, as a rare fault of an engine would.
    """

    goal: int = 5
    once: str | None = None
    unstable: bool = False  # what is played again is not the same
    delay_s: float = 0.0  # that a step takes
    longest_s: float = 0.0  # a step and a reset take a random time of at most this
    name: str = "toy"
    version: str = "1"
    history: list[str] = field(default_factory=list)
    task_id: str = ""

    def reset(self, task: Task) -> Turn:
        if not task.task_id.startswith("toy-"):
            raise KeyError(f"unknown task {task.task_id}")
        time.sleep(self.longest_s * random.random())
        self.task_id, self.history = task.task_id, []
        return self._turn(valid=True)

    def step(self, action: str) -> Turn:
        time.sleep(self.delay_s + self.longest_s * random.random())
        self._misbehave(action)
        self.history.append(action)
        return self._turn(valid=action in ("up", "wait"))

    def close(self) -> None: ...

    def _misbehave(self, action: str) -> None:
        if action == "raise":
            raise ValueError(f"cannot {action} {object()}")
        if action == "nested":
            sys.exit(4)
        if action in ("exit", "hang") and self._armed():
            if action == "exit":
                os._exit(3)
            time.sleep(600)

    def _armed(self) -> bool:
        if self.once is None:
            return True
        mark = Path(self.once) / f"{self.task_id}.mark"
        if mark.exists():
            return False
        mark.touch()
        return True

    def _turn(self, valid: bool) -> Turn:
        ups = self.history.count("up")
        solved = ups >= self.goal
        noise = f" {random.random()}" if self.unstable else ""
        observation = f"{self.task_id}: {' '.join(self.history)}{noise}"
        reward = 1.0 if solved else 0.0
        return Turn(observation, ("up", "wait"), reward, min(1.0, ups / self.goal) if solved else 0.0, solved, solved, valid)


def make(goal: int = 5, once: str | None = None, unstable: bool = False, delay_s: float = 0.0, longest_s: float = 0.0) -> Toy:
    return Toy(goal, once, unstable, delay_s, longest_s)


class Trivial:
    """As little as an environment can do, to measure the pool alone. Never ends."""

    name = "trivial"
    version = "1"
    turn = Turn("You arrive at the desk 1. On the desk 1, you see a book 2, a cellphone 1, and a keychain 3.", ("up",) * 20)

    def reset(self, task: Task) -> Turn:
        return self.turn

    def step(self, action: str) -> Turn:
        return self.turn

    def close(self) -> None: ...


def make_trivial() -> Trivial:
    return Trivial()


def make_broken() -> Toy:
    raise RuntimeError("no such engine")
