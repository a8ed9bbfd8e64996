"""Finished shards: what a stage that plays has played already, so that a kill costs it no more than the shard in progress.

A part is two tables and, written last, a marker with their checksums. A damaged part is put aside and played again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from ratchet.episodes.files import read_table, write_table
from ratchet.errors import RatchetError
from ratchet.files import put_aside, read_json, sha256_files, write_json

KINDS = ("episodes", "steps")


def write_part(base: Path, episodes: pa.Table, steps: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns them as they will be read. `base` is the path without what tells the three files of a part apart."""
    for kind, table in zip(KINDS, (episodes, steps), strict=True):
        write_table(_file(base, kind), kind, table)
    write_json(_marker(base), {kind: sha256_files([_file(base, kind)]) for kind in KINDS})
    return _read(base)


def read_part(base: Path, episode_ids: Sequence[str] | None = None) -> tuple[pa.Table, pa.Table] | None:
    """(episodes, steps) of a part; None where there is no whole one, or it does not hold exactly `episode_ids`."""
    if not _marker(base).is_file():
        return None
    wrong = _wrong(base)
    if wrong is None:
        episodes, steps = _read(base)
        if episode_ids is None or sorted(episode_ids) == episodes["episode_id"].to_pylist():
            return episodes, steps
        wrong = "it holds other episodes than those of its shard"
    put_aside([_marker(base), *(_file(base, kind) for kind in KINDS)], f"{wrong}; these episodes are played again")
    return None


def drop_part(base: Path) -> None:
    """Forgets a part; the marker goes first, so that a kill leaves no part that looks whole."""
    for path in (_marker(base), *(_file(base, kind) for kind in KINDS)):
        path.unlink(missing_ok=True)


def read_parts(folder: Path) -> dict[str, tuple[pa.Table, pa.Table]]:
    """All whole parts by their names, in the names' order."""
    found = {}
    for marker in sorted(folder.glob("*.json")):
        part = read_part(marker.with_name(marker.name.removesuffix(".json")))
        if part is not None:
            found[marker.name.removesuffix(".json")] = part
    return found


def _read(base: Path) -> tuple[pa.Table, pa.Table]:
    return read_table(_file(base, "episodes"), "episodes"), read_table(_file(base, "steps"), "steps")


def _wrong(base: Path) -> str | None:
    try:
        expected = read_json(_marker(base))
    except RatchetError:
        return "its marker cannot be read"
    for kind in KINDS:
        if not _file(base, kind).is_file():
            return f"its {kind} are missing"
        if sha256_files([_file(base, kind)]) != expected.get(kind):
            return f"its {kind} have other bytes than were written"
    return None


def _file(base: Path, kind: str) -> Path:
    return base.with_name(f"{base.name}.{kind}.parquet")  # a name may hold dots, so no `with_suffix`


def _marker(base: Path) -> Path:
    return base.with_name(f"{base.name}.json")
