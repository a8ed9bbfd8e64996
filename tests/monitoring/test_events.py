"""What is found goes out as events, each once, and stands on the version's card and in the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import select

from ratchet.files import write_json
from ratchet.store.cards import read_card
from ratchet.store.database import open_index
from ratchet.store.sync import sync
from ratchet.store.tables import drift
from tests.store import fabricate
from tests.store.fabricate import version_of


def column(name: str, level: str, observed: float) -> dict[str, Any]:
    return {"name": f"drift.{name}", "column": name, "against": "warm", "method": "wasserstein", "detail": "steps an episode", "observed": observed,
            "chance": None, "warn": 0.3, "fail": 3.0, "level": level, "by": None, "reference": {}, "current": {}}  # fmt: skip


def test_drift_is_one_event_a_round_and_stands_on_the_card_and_in_the_index(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    columns = [column("episode_length", "warn", 0.5), column("tokens_per_step", "ok", 0.1)]
    for k, status in ((1, "warn"), (2, "ok")):
        record = {"passed": True, "status": status, "skipped": None, "columns": columns if k == 1 else columns[1:], "references": [], "note": None}
        write_json(workspace / f"data/rounds/{k}/drift/drift.json", record)
    (event,) = sync(tmp_path, workspace, "run-1")
    assert (event.kind, event.round, event.version) == ("drift.detected", 1, version_of("better"))
    assert "drift.episode_length 0.5 against warm (warn" in event.text and [one["name"] for one in event.data["columns"]] == ["drift.episode_length"]
    assert sync(tmp_path, workspace, "run-1") == []
    (entry,) = read_card(tmp_path / "registry", version_of("better"))["drift"]
    assert (entry["round"], entry["status"]) == (1, "warn") and "reference" not in entry["columns"][0]
    with open_index(tmp_path).connect() as connection:
        rows = connection.execute(select(drift.c.column, drift.c.detected, drift.c.limit).order_by(drift.c.round, drift.c.column)).all()
    assert next(tuple(row) for row in rows) == ("episode_length against warm", True, 0.3) and len(rows) == 3
