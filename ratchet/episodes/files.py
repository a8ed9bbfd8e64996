"""Parquet files of episodes, steps and their sidecars: one schema a kind, sorted, zstd, byte-deterministic."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.episodes.schema import KIND_KEY, KINDS, SCHEMA_VERSION, VERSION_KEY
from ratchet.errors import RatchetError
from ratchet.files import replacing

STEP_KEYS = ["episode_id", "t"]
SORT_KEYS = {
    "episodes": ["episode_id"],
    "steps": STEP_KEYS,
    "labels": STEP_KEYS,
    "outcomes": ["panel", "task_id", "sample", "seed"],
    "buffer": ["episode_id"],
    "logprobs": STEP_KEYS,
    "critic": STEP_KEYS,
    "meter": STEP_KEYS,
}


def write_table(path: Path, kind: str, table: pa.Table) -> None:
    """Writes `table` as the kind's schema, sorted by its ids; the same rows in any order give the same bytes."""
    table = table.select(KINDS[kind].names).cast(KINDS[kind])
    table = table.sort_by([(name, "ascending") for name in SORT_KEYS[kind]]).combine_chunks()
    table = table.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode(), KIND_KEY: kind.encode()})
    with replacing(path) as part:
        pq.write_table(table, part, compression="zstd")


def read_table(path: Path, kind: str, columns: list[str] | None = None) -> pa.Table:
    """Reads a file of `kind`. Raises RatchetError for a damaged file, another kind, or a schema from the future."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        version = int(metadata.get(VERSION_KEY, b"0"))
        if version > SCHEMA_VERSION:
            raise RatchetError(
                f"{path}: schema version {version}, this Ratchet reads up to {SCHEMA_VERSION}; upgrade ratchet-agents to read it"
            )
        found = metadata.get(KIND_KEY, b"").decode()
        if found != kind:
            raise RatchetError(f"{path}: holds {found or 'no Ratchet table'}, expected {kind}; check the path")
        table = pq.read_table(path, columns=columns)
        # Parquet calls the entries of lists `element`, Arrow `item`: what is read is what was written.
        return table.cast(pa.schema([KINDS[kind].field(name) for name in table.column_names]))
    except FileNotFoundError:
        raise RatchetError(f"{path}: no such file; run the stage that writes it (`ratchet run` or `dvc repro`)") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise RatchetError(f"{path}: damaged Parquet file ({reason}); delete it and run its stage again") from None


def table_of(kind: str, rows: list[dict]) -> pa.Table:
    """Rows as dictionaries to a table of the kind's schema; missing keys become null."""
    return pa.Table.from_pylist(rows, schema=KINDS[kind])
