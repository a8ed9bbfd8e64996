"""From a Parquet file into its table, many rows at a time."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from sqlalchemy import Connection, Table

from ratchet.episodes.files import read_table
from ratchet.store.tables import episodes, steps, tallies

CHUNK = 20_000
MAX_ACTION_TYPE = 64  # a hostile reply can make its first word as long as it likes
ADDED = ("file_id", "row", "n_prompt", "n_reply")  # columns that no Parquet file has
SOLVED, UNSOLVED, TRUNCATED, ERROR = OUTCOMES = ("solved", "unsolved", "truncated", "error")
TALLIED = ("policy_id", "stratum", "round", "outcome")


def columns_of(path: Path, kind: str, target: Table) -> pa.Table:
    """The file's columns that the index has: texts stay outside, token lists become their lengths.

    Raises RatchetError for a damaged file.
    """
    wanted = [column.name for column in target.columns if column.name not in ADDED]
    if target is steps:
        wanted += ["prompt_ids", "reply_ids"]
    table = read_table(path, kind, wanted)
    for name, ids in (("n_prompt", "prompt_ids"), ("n_reply", "reply_ids")):
        if ids in table.column_names:
            lengths = pc.fill_null(pc.list_value_length(table.column(ids)), 0)
            table = table.drop_columns([ids]).append_column(name, lengths)
    if kind == "outcomes":
        table = table.append_column("row", pa.array(range(table.num_rows), pa.int32()))
    for i, field in enumerate(table.schema):
        if pa.types.is_float32(field.type):  # as text, 0.1 of 32 bits would become another number than as a number
            table = table.set_column(i, field.name, table.column(i).cast(pa.float64()))
        if pa.types.is_string(field.type):
            column = pc.replace_substring(table.column(i), "\x00", "\ufffd")  # PostgreSQL has no NUL in texts
            if field.name == "action_type":
                column = pc.utf8_slice_codeunits(column, 0, MAX_ACTION_TYPE)
            table = table.set_column(i, field.name, column)
    return table


def tallies_of(table: pa.Table) -> pa.Table:
    """How many of a file's episodes share policy, stratum, round and outcome: the rows of `tallies`, in a fixed order."""
    solved, truncated = (pc.fill_null(table.column(name), False) for name in ("solved", "truncated"))
    ended = pc.if_else(solved, SOLVED, pc.if_else(truncated, TRUNCATED, UNSOLVED))
    outcome = pc.if_else(pc.is_valid(table.column("error")), ERROR, ended)
    counted = table.select(list(TALLIED[:-1])).append_column("outcome", outcome).group_by(list(TALLIED)).aggregate([([], "count_all")])
    counted = counted.sort_by([(name, "ascending") for name in TALLIED]).rename_columns([*TALLIED, "n"])
    return counted.append_column("row", pa.array(range(counted.num_rows), pa.int32()))


def load_file(connection: Connection, target: Table, table: pa.Table, file_id: str) -> None:
    """A file's rows, and for episodes their tallies."""
    load(connection, target, table, file_id)
    if target is episodes:
        load(connection, tallies, tallies_of(table), file_id)


def load(connection: Connection, target: Table, table: pa.Table, file_id: str) -> None:
    """Many rows, whose columns are named as those of `target`: COPY on PostgreSQL, the bare driver on SQLite.

    SQLAlchemy's own insert takes dictionaries and looks at every value of them, which is half of the time.
    """
    table = table.append_column("file_id", pa.repeat(file_id, table.num_rows))
    names = table.column_names
    quoted = ", ".join(map(connection.dialect.identifier_preparer.quote, names))
    for batch in table.to_batches(max_chunksize=CHUNK):
        if connection.dialect.name == "postgresql":
            _copy(connection, target.name, quoted, batch)
        else:
            places = ", ".join("?" * len(names))
            rows = _rows(batch)
            connection.exec_driver_sql(f"INSERT INTO {target.name} ({quoted}) VALUES ({places})", rows)


def _rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    columns: Iterable[list[Any]] = (column.to_pylist() for column in batch.columns)
    return list(zip(*columns, strict=True))


def _copy(connection: Connection, table: str, quoted: str, batch: pa.RecordBatch) -> None:
    text = io.BytesIO()
    # texts are quoted and nulls are not, which is how COPY tells them apart
    pyarrow.csv.write_csv(batch, text, pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed"))
    cursor = connection.connection.cursor()
    with cursor.copy(f"COPY {table} ({quoted}) FROM STDIN (FORMAT csv)") as copy:
        copy.write(text.getvalue())
