"""Parquet files: same rows, same bytes; what cannot be read is said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.episodes.files import read_table, table_of, write_table
from ratchet.episodes.schema import KIND_KEY, KINDS, SCHEMA_VERSION, VERSION_KEY
from ratchet.errors import RatchetError


def steps() -> list[dict[str, Any]]:
    return [{"episode_id": f"e{e}", "t": t, "observation": f"é {e} {t}" * (t + 1), "reply_ids": list(range(t)), "logprobs": [-0.5] * t,
             "reward": float(t), "valid": True} for e in range(7) for t in range(4)]


def refused(path: Path, kind: str = "steps") -> str:
    with pytest.raises(RatchetError) as caught:
        read_table(path, kind)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(str(path))
    return text


def test_the_same_rows_in_any_order_and_chunks_are_the_same_bytes(tmp_path: Path) -> None:
    rows = steps()
    write_table(tmp_path / "a", "steps", table_of("steps", rows))
    mixed = pa.concat_tables([table_of("steps", rows[9:][::-1]), table_of("steps", rows[:9])])
    write_table(tmp_path / "b", "steps", mixed.select(mixed.column_names[::-1]))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    back = read_table(tmp_path / "b", "steps")
    assert back.schema.equals(KINDS["steps"]) and back.equals(table_of("steps", rows))
    write_table(tmp_path / "c", "steps", back)
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b", "c"]  # no part files


@pytest.mark.parametrize("keep", [0, 3, 100, -20])
def test_a_damaged_file_is_refused(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "steps.parquet"
    write_table(file, "steps", table_of("steps", steps()))
    file.write_bytes(file.read_bytes()[:keep])
    assert "damaged" in refused(file)


def test_damage_inside_the_data_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "steps.parquet"
    write_table(file, "steps", table_of("steps", steps()))
    data = bytearray(file.read_bytes())
    data[4:200] = b"\xff" * 196
    file.write_bytes(bytes(data))
    assert "damaged" in refused(file)


def test_a_missing_file_another_kind_and_the_future_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "nothing")
    file = tmp_path / "steps.parquet"
    write_table(file, "steps", table_of("steps", steps()))
    assert "holds steps, expected episodes" in refused(file, "episodes")
    table = table_of("steps", steps()).replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION + 1).encode(), KIND_KEY: b"steps"})
    pq.write_table(table, file)
    assert f"schema version {SCHEMA_VERSION + 1}" in refused(file)
    pq.write_table(pa.table({"x": [1]}), file)
    assert "no Ratchet table" in refused(file)


def test_columns_of_another_type_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "steps.parquet"
    table = table_of("steps", steps())
    wrong = table.set_column(1, "t", pa.array(["one"] * table.num_rows)).replace_schema_metadata({VERSION_KEY: b"1", KIND_KEY: b"steps"})
    pq.write_table(wrong, file)
    assert "t" in refused(file)


def test_an_empty_table_is_written_and_read(tmp_path: Path) -> None:
    write_table(tmp_path / "e", "episodes", table_of("episodes", []))
    assert read_table(tmp_path / "e", "episodes").num_rows == 0
