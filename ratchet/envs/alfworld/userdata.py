"""The user's own ALFWorld data (json_2.1.1): where its games are and which of them count."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ratchet.envs.alfworld.layouts import ALFWORLD_VERSION, TASK_TYPES
from ratchet.envs.alfworld.pddl import read_game_file
from ratchet.envs.base import Task
from ratchet.errors import RatchetError

DATA_VARIABLE = "ALFWORLD_DATA"
USER_SPLITS = ("train", "valid_seen", "valid_unseen")


@dataclass(frozen=True, slots=True)
class UserGame:
    """One `game.tw-pddl` of the user's data; `task_id` is its folder below json_2.1.1."""

    task_id: str
    task_type: str
    scene: int
    path: Path

    @property
    def version(self) -> str:
        """The environment version of downloaded games."""
        return ALFWORLD_VERSION


def data_root() -> Path:
    """The folder json_2.1.1 below `ALFWORLD_DATA`. Raises RatchetError where either is missing."""
    value = os.environ.get(DATA_VARIABLE)
    if not value:
        raise RatchetError(f"{DATA_VARIABLE} is not set; set it to the folder that holds json_2.1.1 (alfworld-download makes it)")
    return _json_folder(Path(value).expanduser())


def _json_folder(root: Path) -> Path:
    folder = root if root.name == "json_2.1.1" else root / "json_2.1.1"
    if not folder.is_dir():
        raise RatchetError(
            f"{folder} does not exist; {DATA_VARIABLE} must be the folder that holds json_2.1.1 (alfworld-download makes it)"
        )
    return folder


def user_games(root: Path | None, split: str) -> dict[str, UserGame]:
    """Task id -> game of `split` (train, valid_seen, valid_unseen), sorted by id.

    `root` is the folder that holds json_2.1.1, or json_2.1.1 itself (None: from `ALFWORLD_DATA`). As in ALFWorld, games of
    other than the six task types, with sliced or movable objects, or marked unsolvable do not count.
    """
    if split not in USER_SPLITS:
        raise RatchetError(f"unknown split {split!r} of the ALFWorld data; use one of {', '.join(USER_SPLITS)}")
    folder = data_root() if root is None else _json_folder(root)
    if not (folder / split).is_dir():
        raise RatchetError(f"{folder / split} does not exist; run alfworld-download again")
    games = {}
    for path in sorted((folder / split).glob("*/*/game.tw-pddl")):
        game = _user_game(path, folder)
        if game is not None and read_game_file(path).get("solvable") is True:
            games[game.task_id] = game
    if not games:
        raise RatchetError(f"{folder / split} holds no solvable game.tw-pddl of the six task types; run alfworld-download again")
    return games


def _user_game(path: Path, folder: Path) -> UserGame | None:
    """The game a path names (task type-object-movable-receptacle-scene/trial), or None where its kind does not count."""
    relative = path.parent.relative_to(folder)
    name = relative.parts[1]
    parts = name.split("-")
    if len(parts) != 5 or parts[0] not in TASK_TYPES or not parts[4].isdigit() or "movable" in name or "Sliced" in name:
        return None
    return UserGame(relative.as_posix(), parts[0], int(parts[4]), path)


def user_task(game: UserGame, split: str) -> Task:
    """The task of a downloaded game: its stratum is the task type, its cluster the scene."""
    return Task("alfworld", game.version, game.task_id, split, stratum=game.task_type, cluster=f"FloorPlan{game.scene}")
