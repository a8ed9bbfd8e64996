"""What every environment is: a task goes in, turns come out. Nothing here imports torch (workers start fast)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to solve, fixed by (`env`, `env_version`, `task_id`, `seed`).

    `split` says what it may be used for (`train`, `seen`, `select`, `confirm`, `test`), `stratum` is the kind of task
    (ALFWorld: one of six task types), `cluster` what must be resampled together (ALFWorld: the scene).
    """

    env: str
    env_version: str
    task_id: str
    split: str
    stratum: str
    cluster: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What the environment says after a reset or an action.

    `reward` is of this step, `score` in [0, 1] is the benchmark's graded score so far, `solved` its verified outcome,
    `done` says that the environment itself ended the episode. `valid` is False where the action did nothing because it
    was not admissible. `admissible` is for experts, random policies and checks; a language model never sees it.
    Where it takes long to list, it may be a sequence that computes itself when it is first asked for.
    """

    observation: str
    admissible: Sequence[str]
    reward: float = 0.0
    score: float = 0.0
    solved: bool = False
    done: bool = False
    valid: bool = True


class Environment(Protocol):
    """A benchmark's engine behind one interface. One instance plays one episode at a time."""

    name: str
    version: str

    def reset(self, task: Task) -> Turn:
        """Starts `task`; the same task gives the same text in any process. Raises RatchetError for an unknown task."""
        ...

    def step(self, action: str) -> Turn:
        """Plays one action (any text, hostile text included)."""
        ...

    def close(self) -> None: ...


class Expert(Protocol):
    """A scripted policy that sees only what an agent sees (observation and admissible commands).

    With the class attribute `needs_admissible = False` it goes by the observation alone, and the commands are never listed.
    """

    def reset(self, task: Task, turn: Turn) -> None: ...

    def act(self, turn: Turn) -> tuple[str, str]:
        """(`thought`, `action`) for the latest turn; a short structured thought, then one admissible action."""
        ...
