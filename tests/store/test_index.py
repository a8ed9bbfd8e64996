from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, Inspector, create_engine, inspect, select, text

from ratchet.episodes.files import table_of, write_table
from ratchet.errors import RatchetError
from ratchet.store.database import URL_VARIABLE, alembic_config, database_url, migrate, open_index
from ratchet.store.index import index_run, rebuild
from ratchet.store.sync import sync
from ratchet.store.tables import alerts, checks, decisions, episodes, evaluations, files, metadata, outcomes, steps, versions
from tests.store import fabricate


def everything(engine: Engine) -> dict[str, list[tuple]]:
    with engine.connect() as connection:
        return {table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr) for table in metadata.sorted_tables}


def described(inspector: Inspector) -> dict[str, tuple]:
    return {
        table: (
            sorted(column["name"] for column in inspector.get_columns(table)),
            sorted(inspector.get_pk_constraint(table)["constrained_columns"]),
            sorted((key["constrained_columns"], key["referred_table"], key["options"]) for key in inspector.get_foreign_keys(table)),
        )
        for table in metadata.tables
    }


def test_migrations_make_exactly_the_tables_and_can_be_taken_back(tmp_path: Path, database: str) -> None:
    with open_index(tmp_path).begin() as connection:
        migrate(connection)  # nothing is left to do
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert set(inspect(connection).get_table_names()) == {*metadata.tables, "alembic_version"}
        migrated = described(inspect(connection))
        command.downgrade(alembic_config(connection), "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
        metadata.create_all(connection)
        assert described(inspect(connection)) == migrated  # keys too, which Alembic does not compare


def test_an_index_of_an_older_ratchet_is_brought_up_to_date_and_filled_again(tmp_path: Path, database: str) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    engine = create_engine(database_url(tmp_path))
    (tmp_path / "registry").mkdir()
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
        for table in ("versions", "files"):
            names = [column["name"] for column in inspect(connection).get_columns(table)]
            row = {name: 1 if name in ("size", "modified", "rows", "round", "iteration") else "old" for name in names}
            connection.execute(text(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{n}' for n in names)})"), row)
    engine.dispose()
    sync(tmp_path, workspace, "run-1")
    found = everything(open_index(tmp_path))
    assert len(found["versions"]) == 3 and found["files"] and "old" not in str(found)


def test_the_index_is_opened_safe_for_several_processes(tmp_path: Path) -> None:
    with open_index(tmp_path).connect() as connection:
        found = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 1, "busy_timeout": 30000, "foreign_keys": 1}


def test_a_rebuilt_index_holds_the_same_rows(tmp_path: Path, database: str) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    second = tmp_path / "runs/run-2"
    fabricate.start(second, "another", 0.5)
    sync(tmp_path, second, "run-2")
    before = everything(open_index(tmp_path))
    assert all(before[table.name] for table in (versions, evaluations, decisions, checks, alerts, files, outcomes, episodes, steps))
    if database == "sqlite":
        (tmp_path / "registry/index.db").unlink()
    counts = rebuild(tmp_path)
    assert everything(open_index(tmp_path)) == before
    assert counts == {name: len(rows) for name, rows in before.items()}
    assert rebuild(tmp_path) == counts and everything(open_index(tmp_path)) == before


def test_what_is_indexed_is_skipped_what_changed_is_replaced_what_is_gone_is_removed(tmp_path: Path, database: str) -> None:
    engine, harvest = open_index(tmp_path), tmp_path / "data/rounds/1/harvest"
    fabricate.episodes(harvest, "a", n=4, steps=3)
    assert index_run(engine, tmp_path, "run-1") == 4 + 12
    assert index_run(engine, tmp_path, "run-1") == 0
    fabricate.episodes(harvest, "a", n=4, steps=3)  # the same bytes at another time
    assert index_run(engine, tmp_path, "run-1") == 0
    fabricate.episodes(harvest, "b", n=2, steps=3)
    assert index_run(engine, tmp_path, "run-1") == 2 + 6
    with engine.connect() as connection:
        assert {row.episode_id for row in connection.execute(select(steps))} == {"b-0000", "b-0001"}
        assert connection.execute(select(steps)).first()[3:6] == ("look", 2, 3)
    (harvest / "steps.parquet").unlink()
    index_run(engine, tmp_path, "run-1")
    with engine.connect() as connection:
        assert connection.execute(select(steps)).all() == [] and len(connection.execute(select(episodes)).all()) == 2


def test_two_runs_with_the_same_episodes_are_both_there(tmp_path: Path, database: str) -> None:
    engine = open_index(tmp_path)
    for run in ("run-1", "run-2"):
        fabricate.episodes(tmp_path / run / "data/demonstrations", "expert")
        index_run(engine, tmp_path / run, run, tmp_path)
    with engine.connect() as connection:
        assert len(connection.execute(select(episodes)).all()) == 16


def test_hostile_texts_are_stored_harmlessly(tmp_path: Path, database: str) -> None:
    row = {"episode_id": "e", "t": 0, "action_type": "'; DROP TABLE steps; --\x00" + "x" * 9999, "prompt_ids": None, "reply_ids": []}
    write_table(tmp_path / "data/final/steps.parquet", "steps", table_of("steps", [row]))
    engine = open_index(tmp_path)
    index_run(engine, tmp_path, "run-1")
    with engine.connect() as connection:
        (found,) = connection.execute(select(steps)).all()
    assert found.action_type.startswith("'; DROP TABLE steps; --\ufffdx") and len(found.action_type) == 64 and found.n_prompt == 0


def test_a_damaged_file_is_named_and_the_others_stay_indexed(tmp_path: Path, database: str) -> None:
    fabricate.episodes(tmp_path / "data/demonstrations", "expert")
    fabricate.episodes(tmp_path / "data/final", "final")
    (tmp_path / "data/final/steps.parquet").write_bytes(b"PAR1")
    engine = open_index(tmp_path)
    with pytest.raises(RatchetError, match="data/final/steps.parquet"):
        index_run(engine, tmp_path, "run-1")
    with engine.connect() as connection:
        assert len(connection.execute(select(steps)).all()) == 40


def test_an_index_that_cannot_be_used_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry/index.db").write_bytes(b"no database" * 500)
    with pytest.raises(RatchetError, match="ratchet index") as error:
        open_index(tmp_path)
    assert "\n" not in str(error.value)
    monkeypatch.setenv(URL_VARIABLE, "nonsense")
    with pytest.raises(RatchetError, match=URL_VARIABLE):
        open_index(tmp_path)


def test_an_index_of_a_newer_ratchet_is_refused(tmp_path: Path, database: str) -> None:
    with open_index(tmp_path).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(RatchetError, match="upgrade ratchet-agents") as error:
        open_index(tmp_path)
    assert "\n" not in str(error.value)


def test_steps_are_indexed_fast(tmp_path: Path, database: str) -> None:
    """SQLite: 20 000 a second is the aim on an idle core; a quarter of it is asked for, since tests run beside others. COPY is faster."""
    n, rng = 40_000, np.random.default_rng(0)
    row = {"action_type": "go", "prompt_ids": [1, 2, 3], "reply_ids": [1], "policy_version": "v", "reward": 0.0, "valid": True}
    rows = [row | {"episode_id": f"{i // 20:08d}-3c1e-5b7a-9a53-2a8a0f1f7c11", "t": i % 20, "score": float(rng.random())} for i in range(n)]
    write_table(tmp_path / "data/rounds/1/harvest/steps.parquet", "steps", table_of("steps", rows))
    engine = open_index(tmp_path)
    began = time.process_time()
    assert index_run(engine, tmp_path, "run-1") == n
    rate = n / (time.process_time() - began)
    print(f"{rate:.0f} steps/s")
    assert rate > (5_000 if database == "sqlite" else 40_000)
