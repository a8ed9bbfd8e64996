"""ALFWorld as a benchmark of the pipeline: its splits, its files in a workspace, its environment in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ratchet.envs.alfworld.env import AlfworldEnv, AnyGame
from ratchet.envs.alfworld.expert import AlfworldExpert
from ratchet.envs.alfworld.games import game_task, generate_games
from ratchet.envs.alfworld.layouts import held_out_scenes
from ratchet.envs.alfworld.storage import read_games, write_games
from ratchet.envs.alfworld.userdata import UserGame, data_root, user_games, user_task
from ratchet.envs.base import Expert, Task
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.section import Section

SPLITS = ("train", "seen", "select", "confirm", "test")
OFFICIAL = {"train": "train", "seen": "valid_seen", "select": "train", "confirm": "train", "test": "valid_unseen"}
"""Which part of the user's data a split comes from; select and confirm are the games of 12 train scenes that train nothing."""


def make(folder: str, splits: list[str], engine: str) -> AlfworldEnv:
    """The environment over the games of `splits` that `prepare` wrote into `folder`."""
    return AlfworldEnv(_read_all(folder, tuple(splits)), engine)  # type: ignore[arg-type]


@cache  # a worker holds one environment a row, all over the same games
def _read_all(folder: str, splits: tuple[str, ...]) -> Mapping[str, AnyGame]:
    return {task_id: game for split in splits for task_id, game in _read(Path(folder), split).items()}


def _read(folder: Path, split: str) -> Mapping[str, AnyGame]:
    if not (folder / f"{split}.json").is_file():
        return read_games(folder / f"{split}.parquet")
    root = data_root()
    return {
        one["task_id"]: UserGame(one["task_id"], one["task_type"], one["scene"], root / one["task_id"] / "game.tw-pddl")
        for one in read_json(folder / f"{split}.json")
    }


class AlfworldOptions(Section):
    """`env.options` of ALFWorld."""

    games: Literal["generated", "data"] = Field("generated", description="generated rooms, or your own json_2.1.1 under ALFWORLD_DATA")
    engine: Literal["auto", "compiled", "textworld"] = Field(
        "auto", description="auto takes the compiled twin where it is exact and the real engine elsewhere"
    )
    rooms: int | None = Field(6, ge=3, description="most receptacles of a generated room, from 3; null = the whole room")


@dataclass(frozen=True)
class Alfworld:
    """Rooms that are generated, or the user's json_2.1.1 under ALFWORLD_DATA."""

    Options: ClassVar[type[Section]] = AlfworldOptions
    factory: str = "ratchet.envs.alfworld.benchmark:make"

    def prepare(self, folder: Path, settings: Any, counts: Mapping[str, int], seed: int) -> dict[str, list[Task]]:
        """Writes each split's games into `folder` and returns its tasks. `settings` is the `env` section."""
        options = settings.options
        chosen = self._generated if options.games == "generated" else self._given
        return {split: chosen(folder, split, counts[split], seed, options.rooms) for split in SPLITS}

    def _generated(self, folder: Path, split: str, count: int, seed: int, rooms: int | None) -> list[Task]:
        games = generate_games(split, count, seed, rooms)
        write_games(folder / f"{split}.parquet", games)
        return [game_task(game, split) for game in games]

    def _given(self, folder: Path, split: str, count: int, seed: int, rooms: int | None) -> list[Task]:
        held_out = set(held_out_scenes())
        games = list(user_games(None, OFFICIAL[split]).values())
        if split in ("train", "select", "confirm"):
            games = [game for game in games if (game.scene in held_out) == (split != "train")]
        if split in ("select", "confirm"):  # both from the same scenes, every second game each
            games = games[0 if split == "select" else 1 :: 2]
        games = games[:count]
        if not games:
            raise RatchetError(f"the ALFWorld data has no game for the split {split}; it needs all of json_2.1.1/{OFFICIAL[split]}")
        write_json(folder / f"{split}.json", [{"task_id": g.task_id, "task_type": g.task_type, "scene": g.scene} for g in games])
        return [user_task(game, split) for game in games]

    def arguments(self, folder: Path, settings: Any, splits: list[str]) -> dict[str, Any]:
        """Keyword arguments of `make` in a worker."""
        return {"folder": str(folder), "splits": splits, "engine": settings.options.engine}

    def expert(self, folder: Path) -> Expert:
        return AlfworldExpert()
