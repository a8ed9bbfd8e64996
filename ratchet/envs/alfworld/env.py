"""ALFWorld behind the one environment interface: a game by its task id, played by whichever engine may play it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from ratchet.envs.alfworld.compiled import CompiledGame
from ratchet.envs.alfworld.games import Game
from ratchet.envs.alfworld.layouts import ALFWORLD_VERSION
from ratchet.envs.alfworld.pddl import NotCompilable, game_data, read_game_file, wheel_is_verified, world_from_data
from ratchet.envs.alfworld.storage import read_games
from ratchet.envs.alfworld.textworld_engine import TextworldGame
from ratchet.envs.alfworld.userdata import UserGame
from ratchet.envs.alfworld.world import world_from_game
from ratchet.envs.base import Task, Turn
from ratchet.errors import RatchetError

Engine = Literal["auto", "compiled", "textworld"]
AnyGame = Game | UserGame


class _Played(Protocol):
    """What both engines offer."""

    def reset(self) -> str: ...
    def step(self, command: str) -> tuple[str, bool]: ...
    @property
    def won(self) -> bool: ...
    @property
    def admissible(self) -> tuple[str, ...]: ...


def open_game(game: AnyGame, engine: Engine) -> _Played:
    """The game in an engine. `auto` compiles what may be compiled and gives the rest to TextWorld; `compiled` refuses it."""
    if isinstance(game, Game) and engine != "textworld" and wheel_is_verified():
        return CompiledGame(world_from_game(game))
    data = game_data(game) if isinstance(game, Game) else read_game_file(game.path)
    if engine == "textworld":
        return TextworldGame(data)
    try:
        return CompiledGame(world_from_data(data))
    except NotCompilable as reason:
        if engine == "compiled":
            raise RatchetError(f"{game.task_id} has {reason}, which the compiled engine does not play; use engine 'auto'") from reason
        return TextworldGame(data)


class AlfworldEnv:
    """Plays the given games. An episode ends when the task is solved (reward 1); after that the last turn is repeated.

    `games` maps task ids to games, or names files of `write_games`. The same task gives the same text in any process and
    in either engine; a task's `seed` has no effect, since ALFWorld has no chance in it.
    """

    name = "alfworld"

    def __init__(self, games: Mapping[str, AnyGame] | Path | str | Iterable[Path | str], engine: Engine = "auto") -> None:
        """Raises RatchetError for an unknown engine, a missing or damaged file, or no games at all."""
        if engine not in ("auto", "compiled", "textworld"):
            raise RatchetError(f"unknown ALFWorld engine {engine!r}; use auto, compiled or textworld")
        self.games: Mapping[str, AnyGame] = games if isinstance(games, Mapping) else _from_files(games)
        if not self.games:
            raise RatchetError("ALFWorld was given no games; generate some, or set ALFWORLD_DATA")
        self.engine: Engine = engine
        self._game: _Played | None = None
        self._last = Turn("", ())

    @cached_property
    def version(self) -> str:
        """Of all its games; found out only when asked for, because every row of a pool builds an environment of thousands of games."""
        versions = {game.version for game in self.games.values()}
        return versions.pop() if len(versions) == 1 else f"{ALFWORLD_VERSION}+mixed"

    def reset(self, task: Task) -> Turn:
        """Starts `task`; the observation is the intro with the task. Raises RatchetError for a task it does not have."""
        game = self.games.get(task.task_id)
        if task.env != self.name or game is None:
            raise RatchetError(
                f"{task.env} task {task.task_id!r} is not among the {len(self.games)} ALFWorld games given; check the game files"
            )
        if task.env_version != game.version:
            raise RatchetError(f"task {task.task_id!r} is of ALFWorld {task.env_version}, its game of {game.version}; make the tasks again")
        self._game = open_game(game, self.engine)
        text = self._game.reset()
        self._last = Turn(text, self._game.admissible)
        return self._last

    def step(self, action: str) -> Turn:
        """Plays one action; anything not admissible does nothing and says so. Raises RatchetError before the first reset."""
        if self._game is None:
            raise RatchetError("an ALFWorld episode was stepped before reset; call reset(task) first")
        if self._last.done:
            self._last = replace(self._last, reward=0.0, valid=False)
            return self._last
        text, valid = self._game.step(action)
        won = self._game.won
        score = 1.0 if won else 0.0
        self._last = Turn(text, self._game.admissible, reward=score, score=score, solved=won, done=won, valid=valid)
        return self._last

    def close(self) -> None:
        """Lets the game go; the environment can be reset again."""
        self._game = None


def _from_files(paths: Path | str | Iterable[Path | str]) -> dict[str, AnyGame]:
    games: dict[str, AnyGame] = {}
    for path in [paths] if isinstance(paths, (Path, str)) else paths:
        games.update(read_games(Path(path)))
    return games
