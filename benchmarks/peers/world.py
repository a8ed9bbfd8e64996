"""A world for measuring: ALFWorld's compiled engine, so wrapped that every episode has the same number of turns and of tokens.

Nothing here imports torch: environment workers start with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ratchet.envs.alfworld.env import AlfworldEnv
from ratchet.envs.alfworld.games import Game, game_task
from ratchet.envs.alfworld.storage import read_games
from ratchet.envs.base import Task, Turn
from ratchet.errors import RatchetError

GAMES = "train.parquet"
MARKS = {"first": 3, "later": 2}  # tokens of the template around an observation: <begin><observe>…<act>, <observe>…<act>
END = "<end>"


@cache
def _games(folder: str) -> dict[str, Game]:
    return {name: game for name, game in read_games(Path(folder) / GAMES).items() if isinstance(game, Game)}


def tasks_of(folder: Path) -> list[Task]:
    """The world's tasks, in the file's order."""
    return [game_task(game, "train") for game in _games(str(folder)).values()]


def next_tasks(tasks: Sequence[Task], count: int, iteration: int) -> list[Task]:
    """The next `count` tasks in their order, from the beginning again where they end."""
    return [tasks[(iteration * count + number) % len(tasks)] for number in range(count)]


def drawn_tasks(tasks: Sequence[Task], count: int, seed: int, iteration: int) -> list[Task]:
    """`count` tasks drawn by seed and iteration alone: the same on both sides."""
    order = np.random.default_rng((seed, iteration)).permutation(len(tasks))
    return [tasks[index] for index in order[:count]]


class Sizer:
    """Cuts and fills texts to a number of tokens; a name (` cabinet 3`) is one token wherever it stands, so names fill up."""

    def __init__(self, tokenizer_file: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(tokenizer_file))
        names = [token.content for token in self.tokenizer.get_added_tokens_decoder().values() if not token.special]
        self.filler = min((name for name in names if name.startswith(" ")), default="")
        if not self.filler:
            raise RatchetError(f"{tokenizer_file}: has no name as one token; make it with ratchet.episodes.tokenizer")

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def sized(self, text: str, tokens: int) -> str:
        """`text` with exactly `tokens` tokens."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        keep = min(tokens, len(encoding.ids))
        count = len(encoding.ids)
        while count > tokens:  # the beginning of a text may be cut into more tokens than it had within the whole
            text = text[: encoding.offsets[keep - 1][1]]
            count, keep = self.count(text), keep - 1
        return text + self.filler * (tokens - count)


class EndlessWorld:
    """Implements `Environment`. Whatever is written becomes one admissible command, chosen by a hash of all that was written, and the
    episode never ends by itself. The score is that hash in [0, 1]: no two samples of a task get the same one.
    """

    name = "alfworld"

    def __init__(self, folder: str, tokens: int) -> None:
        """`folder` is what `make_world` wrote; each turn is read as `tokens` tokens, the template's marks included."""
        self.tokens = tokens
        self.sizer = _sizer(folder)
        self.engine = AlfworldEnv(_games(folder), "compiled")
        self.version = self.engine.version
        self.task: Task | None = None
        self.last = Turn("", ())
        self.written = 0

    def reset(self, task: Task) -> Turn:
        self.task, self.written = task, 0
        self.last = self.engine.reset(task)
        return Turn(self.sizer.sized(self.last.observation, self.tokens - MARKS["first"]), ())

    def step(self, action: str) -> Turn:
        """Plays a command. Raises RatchetError before the first reset."""
        if self.task is None:
            raise RatchetError("the world was stepped before reset; call reset(task) first")
        self.written = zlib.crc32(action.partition(END)[0].strip().encode(), self.written)
        if self.last.done:  # solved by chance: the game begins again, and the episode goes on
            self.last = self.engine.reset(self.task)
        self.last = self.engine.step(self.last.admissible[self.written % len(self.last.admissible)])
        text = self.sizer.sized(self.last.observation, self.tokens - MARKS["later"])
        return Turn(text, (), score=self.written / 2**32)

    def close(self) -> None:
        self.engine.close()


@cache
def _sizer(folder: str) -> Sizer:
    return Sizer(Path(folder) / "tokenizer" / "tokenizer.json")


def make(folder: str, tokens: int) -> EndlessWorld:
    """The factory of the environment pool's workers."""
    return EndlessWorld(folder, tokens)
