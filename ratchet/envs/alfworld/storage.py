"""Generated games on disk: one small file a split, the same bytes for the same games."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.envs.alfworld.games import Game, identified
from ratchet.envs.alfworld.layouts import ALFWORLD_VERSION
from ratchet.errors import RatchetError

FORMAT = "ratchet alfworld games 1"

_SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("task_type", pa.string()),
        ("scene", pa.int32()),
        ("room", pa.string()),
        ("sentence", pa.string()),
        ("target", pa.string()),
        ("parent", pa.string()),
        ("receptacles", pa.list_(pa.int16())),
        ("object_types", pa.list_(pa.string())),
        ("object_places", pa.list_(pa.int16())),
    ],
    metadata={"format": FORMAT, "alfworld": ALFWORLD_VERSION},
)


def write_games(path: Path, games: Iterable[Game]) -> None:
    """Writes `games` in their order as zstd Parquet; equal games give equal bytes (with one version of pyarrow)."""
    rows = [
        {
            "task_id": game.task_id,
            "task_type": game.task_type,
            "scene": game.scene,
            "room": game.room,
            "sentence": game.sentence,
            "target": game.target,
            "parent": game.parent,
            "receptacles": list(game.receptacles),
            "object_types": [kind for kind, _ in game.objects],
            "object_places": [place for _, place in game.objects],
        }
        for game in games
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), partial, compression="zstd")
    partial.replace(path)


def read_games(path: Path) -> dict[str, Game]:
    """Task id -> game, in the file's order. Raises RatchetError where the file is missing, damaged or of another version.

    Each game is checked against its task id, which its content gives, so a changed byte does not pass unseen.
    """
    if not path.is_file():
        raise RatchetError(f"{path} does not exist; generate the games again (the stage that makes the tasks)")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from error
    if not table.schema.equals(_SCHEMA) or (table.schema.metadata or {}).get(b"format") != FORMAT.encode():
        raise _damaged(path, "it is not a file of generated ALFWorld games of this version")
    if table.schema.metadata[b"alfworld"] != ALFWORLD_VERSION.encode():
        raise RatchetError(f"{path} holds games of another alfworld than {ALFWORLD_VERSION}; delete it and generate the games again")
    columns = [table.column(name).to_pylist() for name in _SCHEMA.names]
    games: dict[str, Game] = {}
    for row in zip(*columns, strict=True):
        if None in row:
            raise _damaged(path, "a value is missing")
        task_id, task_type, number, room, sentence, target, parent, receptacles, kinds, places = row
        if len(kinds) != len(places):
            raise _damaged(path, f"{task_id} lists {len(kinds)} objects and {len(places)} places")
        game = Game(task_id, task_type, number, room, sentence, target, parent, tuple(receptacles), tuple(zip(kinds, places, strict=True)))
        if identified(game).task_id != task_id or task_id in games:
            raise _damaged(path, f"{task_id} does not match its content or is there twice")
        games[task_id] = game
    return games


def _damaged(path: Path, why: str) -> RatchetError:
    return RatchetError(f"{path} is damaged ({why}); delete it and generate the games again")
