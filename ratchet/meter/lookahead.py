"""What an action would lead to: copies of environments where they can be copied, replays of the actions so far where they cannot.

A replay is only worth what it repeats, so every observation of it is compared with what was seen. Environment steps are counted.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ratchet.envs.base import Task, Turn
from ratchet.envs.benchmarks import benchmark, open_pool
from ratchet.envs.pool import EnvPool, Failure
from ratchet.errors import RatchetError


@dataclass
class Steps:
    """Environment steps of one episode: `tried` candidates, `replayed` to get there."""

    tried: int = 0
    replayed: int = 0


class Lookahead(Protocol):
    steps: dict[str, Steps]  # by episode

    def begin(self, row: int, task: Task, turn: Turn, episode_id: str) -> None: ...

    def tried(self, rows: Sequence[int], observations: Sequence[str], actions: Sequence[Sequence[str]]) -> list[list[Turn | Failure]]:
        """What each of a row's actions leads to. `observations`: what the environments themselves say now.

        Raises RatchetError where what is tried ahead in has come to say something else than they do.
        """
        ...

    def took(self, row: int, candidate: int) -> None:
        """The row goes on with this one of the actions last tried."""
        ...


@dataclass
class _Copied:
    task: Task
    episode_id: str
    env: Any  # the copy that the row goes on with
    says: str  # what that said last
    tried: list[tuple[Any, Turn]] = field(default_factory=list)  # a copy for each action tried last, with what it said of it


class Clones:
    """Environments of this process that can be copied."""

    def __init__(self, make: Any) -> None:
        self.make, self.steps = make, dict[str, Steps]()
        self._rows: dict[int, _Copied] = {}

    def begin(self, row: int, task: Task, turn: Turn, episode_id: str) -> None:
        env = self.make()
        self._rows[row] = _Copied(task, episode_id, env, env.reset(task).observation)
        self.steps[episode_id] = Steps()

    def tried(self, rows: Sequence[int], observations: Sequence[str], actions: Sequence[Sequence[str]]) -> list[list[Turn | Failure]]:
        found: list[list[Turn | Failure]] = []
        for row, now, some in zip(rows, observations, actions, strict=True):
            one = self._rows[row]
            if one.says != now:
                raise _otherwise(one.task, "in a copy of its environment")
            copies = [one.env.clone() for _ in some]
            one.tried = [(env, env.step(action)) for env, action in zip(copies, some, strict=True)]
            found.append([turn for _, turn in one.tried])
            self.steps[one.episode_id].tried += len(some)
        return found

    def took(self, row: int, candidate: int) -> None:
        one = self._rows[row]
        one.env, turn = one.tried[candidate]
        one.says, one.tried = turn.observation, []


@dataclass
class _Played:
    task: Task
    episode_id: str
    actions: list[str] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)  # behind the reset and each action
    last: list[str] = field(default_factory=list)  # the actions that were tried last


class Replays:
    """Environments in worker processes, begun again for every candidate."""

    def __init__(self, pool: EnvPool, candidates: int) -> None:
        self.pool, self.candidates, self.steps = pool, candidates, dict[str, Steps]()
        self._rows: dict[int, _Played] = {}

    def begin(self, row: int, task: Task, turn: Turn, episode_id: str) -> None:
        self._rows[row] = _Played(task, episode_id)
        self.steps[episode_id] = Steps()

    def tried(self, rows: Sequence[int], observations: Sequence[str], actions: Sequence[Sequence[str]]) -> list[list[Turn | Failure]]:
        for row, now, some in zip(rows, observations, actions, strict=True):
            self._rows[row].observations.append(now)
            self._rows[row].last = [*some]
        entries = [(row, place, action) for row, some in zip(rows, actions, strict=True) for place, action in enumerate(some)]
        slots = [row * self.candidates + place for row, place, _ in entries]
        played = [self._rows[row] for row, _, _ in entries]
        turns: list[Turn | Failure] = self.pool.reset(slots, [one.task for one in played])
        self._compare(played, turns, 0)
        for t in range(max(len(one.actions) for one in played)):
            going = [at for at, one in enumerate(played) if t < len(one.actions) and not isinstance(turns[at], Failure)]
            for at, turn in zip(going, self.pool.step([slots[at] for at in going], [played[at].actions[t] for at in going]), strict=True):
                turns[at] = turn
                self.steps[played[at].episode_id].replayed += 1
            self._compare([played[at] for at in going], [turns[at] for at in going], t + 1)
        going = [at for at, turn in enumerate(turns) if not isinstance(turn, Failure)]
        for at, turn in zip(going, self.pool.step([slots[at] for at in going], [entries[at][2] for at in going]), strict=True):
            turns[at] = turn
            self.steps[played[at].episode_id].tried += 1
        found: dict[int, list[Turn | Failure]] = {row: [] for row in rows}
        for (row, _, _), turn in zip(entries, turns, strict=True):
            found[row].append(turn)
        return [found[row] for row in rows]

    def _compare(self, played: Sequence[_Played], turns: Sequence[Turn | Failure], t: int) -> None:
        for one, turn in zip(played, turns, strict=True):
            if not isinstance(turn, Failure) and turn.observation != one.observations[t]:
                raise _otherwise(one.task, f"at step {t} when its actions are played again")

    def took(self, row: int, candidate: int) -> None:
        self._rows[row].actions.append(self._rows[row].last[candidate])


def _otherwise(task: Task, where: str) -> RatchetError:
    return RatchetError(f"guidance: task {task.task_id} reads otherwise {where}, so nothing can be tried ahead")


@contextmanager
def lookahead_of(settings: Any, games: Path, split: str, candidates: int) -> Iterator[Lookahead]:
    """Copies where the environment has `clone`, else replays in `env.workers` processes of their own. `settings` is the `env` section."""
    one = benchmark(settings.name)
    module, _, name = one.factory.partition(":")
    make, arguments = getattr(importlib.import_module(module), name), one.arguments(games, settings, [split])
    if hasattr(_kind_of(make), "clone"):
        yield Clones(lambda: make(**arguments))
        return
    with open_pool(games, settings, [split], admissible=False) as pool:
        yield Replays(pool, candidates)


def _kind_of(make: Any) -> Any:
    """The class of the environments that a factory makes, as its annotation says."""
    import typing

    if isinstance(make, type):
        return make
    try:
        return typing.get_type_hints(make).get("return", object)
    except (NameError, TypeError):
        return object
