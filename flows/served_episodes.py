"""Episodes that somebody served and dropped into a folder, for the monitor to look at.

A file is a JSONL of chats as `ratchet export-episodes` writes and `ratchet import` reads, or a folder with our own episodes.parquet and
steps.parquet, which know more: tokens, and which actions were not taken.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ratchet.episodes.files import read_table
from ratchet.episodes.interchange import SCORE_KEYS, SOLVED_KEYS, read_file
from ratchet.errors import RatchetError
from ratchet.files import sha256_files
from ratchet.settings import Settings

CHATS = ("*.jsonl", "*.json")
OF_CHATS = ("episode_length", "action_types", "observations")  # what a chat tells; how it ended only where every line says so
OF_TABLES = (*OF_CHATS, "tokens_per_step", "invalid_share", "refusal_share", "success")
MAX_BYTES = 512 * 2**20  # of one file


@dataclass
class Served:
    """New episodes, none where there are none. `files` are the content hashes of what was read, `problems` name what could not be."""

    episodes: pa.Table | None = None
    steps: pa.Table | None = None
    columns: tuple[str, ...] = ()
    files: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """Plain JSON of it, without the rows."""
        count = 0 if self.episodes is None else self.episodes.num_rows
        return {"episodes": count, "files": sorted(self.files), "problems": self.problems, "columns": list(self.columns)}


def new_ones(folder: Path, settings: Settings, seen: set[str]) -> Served:
    """What lies in `folder` and is not among `seen` (content hashes). A file that cannot be read is a problem, no error."""
    served, tables, columns = Served(), [], set(OF_TABLES)
    for paths in _files(folder):
        name = str(paths[0].relative_to(folder)) if len(paths) == 1 else str(paths[0].parent.relative_to(folder))
        try:
            if max(path.stat().st_size for path in paths) > MAX_BYTES:
                raise RatchetError(f"larger than {MAX_BYTES >> 20} MiB; split it")
            digest = sha256_files(paths)[:12]
            if digest in seen or digest in served.files:
                continue
            episodes, steps, known = _read(paths, settings)
        except (RatchetError, OSError) as error:
            served.problems.append(f"{name}: {str(error).removeprefix(f'{paths[0]}: ')}")
            continue
        tables.append((episodes, steps))
        columns &= set(known)
        served.files.append(digest)
    if tables:
        served.episodes, served.steps = (pa.concat_tables([pair[side] for pair in tables]) for side in (0, 1))
        served.columns = tuple(name for name in OF_TABLES if name in columns)
    return served


def _files(folder: Path) -> list[list[Path]]:
    chats = [[path] for pattern in CHATS for path in folder.glob(pattern) if path.is_file()]
    tables = [[path, path.with_name("steps.parquet")] for path in folder.glob("**/episodes.parquet")]
    return sorted(chats) + sorted(tables)


def _read(paths: list[Path], settings: Settings) -> tuple[pa.Table, pa.Table, tuple[str, ...]]:
    if len(paths) == 2:
        return read_table(paths[0], "episodes"), read_table(paths[1], "steps"), OF_TABLES
    found = read_file(paths[0], settings.env.name, settings.env.action_format)
    told = all(_says_how_it_ended(line) for line in paths[0].read_text(encoding="utf-8-sig", errors="replace").splitlines() if line.strip())
    return *found.tables(), (*OF_CHATS, "success") if told else OF_CHATS


def _says_how_it_ended(line: str) -> bool:
    return any(f'"{key}"' in line for key in (*SOLVED_KEYS, *SCORE_KEYS))
