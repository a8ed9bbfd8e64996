"""Throughput: what stages said goes into the registry once, and from there into the index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from ratchet.clock import PHASES
from ratchet.errors import RatchetError
from ratchet.store.cards import read_cards
from ratchet.store.database import open_index
from ratchet.store.index import rebuild
from ratchet.store.sync import sync
from ratchet.store.tables import throughput
from ratchet.store.throughput import entries, record_of, shares
from tests.store.fabricate import measured

LATER = "2026-01-02T00:00:00.000000+00:00"


def rows(root: Path) -> list[dict]:
    with open_index(root).connect() as connection:
        return [dict(row) for row in connection.execute(select(throughput).order_by(throughput.c.measured_at)).mappings()]


def test_what_a_stage_said_is_appended_once_and_indexed(tmp_path: Path) -> None:
    workspace = tmp_path / "runs" / "run-1"
    measured(workspace, "harvest@1", decoding=3.0)
    sync(tmp_path, workspace, "run-1")
    sync(tmp_path, workspace, "run-1")
    measured(workspace, "harvest@1", decoding=6.0, at=LATER)  # the stage ran again, slower
    sync(tmp_path, workspace, "run-1")
    found = rows(tmp_path)
    assert [(row["run_id"], row["stage"], row["decoding_s"], row["decoding_tokens_per_s"]) for row in found] == [
        ("run-1", "harvest@1", 3.0, 100.0),
        ("run-1", "harvest@1", 6.0, 50.0),
    ]
    first = found[0]
    assert (first["environment_s"], first["learning_s"], first["other_s"], first["wall_s"]) == (1.0, 0.0, 6.0, 10.0)
    assert (first["tokens_generated"], first["tokens_read"], first["peak_memory_mb"], first["threads"]) == (300, 0, 512.0, 2)
    assert [record["measured_at"] for _, record in entries(tmp_path / "registry")] == [first["measured_at"], LATER]
    assert read_cards(tmp_path / "registry") == []  # a card of its own kind
    assert rebuild(tmp_path)["throughput"] == 2 and rows(tmp_path) == found


def test_a_stage_that_still_runs_or_was_killed_is_not_history(tmp_path: Path) -> None:
    workspace = tmp_path / "runs" / "run-1"
    measured(workspace, "harvest@1", state="running")
    sync(tmp_path, workspace, "run-1")
    assert rows(tmp_path) == [] and not (tmp_path / "registry" / "throughput").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stage": "harvest@1"}', '{"seconds": 3}'])
def test_a_damaged_log_is_left_out(tmp_path: Path, text: str) -> None:
    workspace = tmp_path / "runs" / "run-1"
    measured(workspace, "label@1")
    (workspace / "logs" / "throughput" / "harvest@1.json").write_text(text)
    assert record_of(workspace, "harvest@1") is None
    sync(tmp_path, workspace, "run-1")
    assert [row["stage"] for row in rows(tmp_path)] == ["label@1"]


@pytest.mark.parametrize("text", ["{", "[]", '{"stages": [{}]}', json.dumps({"schema": 99, "run": "run-1", "stages": []})])
def test_a_damaged_card_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "registry" / "throughput" / "run-1.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RatchetError, match=r"run-1\.json: (damaged throughput card|card schema 99)") as caught:
        list(entries(tmp_path / "registry"))
    assert "\n" not in str(caught.value)


def test_every_phase_has_a_column() -> None:
    assert {f"{name}_s" for name in (*PHASES, "other")} <= set(throughput.columns.keys())


def test_shares_add_up(tmp_path: Path) -> None:
    found = shares(measured(tmp_path, "harvest@1"))
    assert list(found) == ["environment", "decoding", "other"] and sum(found.values()) == pytest.approx(1)
