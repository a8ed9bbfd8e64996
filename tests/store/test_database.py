"""What a team's database adds: several writers, several checkouts, the same rows everywhere, secrets, a server that goes away."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from sqlalchemy import create_engine, select

from flows.stages import run_stage
from ratchet.episodes.files import table_of, write_table
from ratchet.errors import RatchetError
from ratchet.store import database as module
from ratchet.store.database import URL_VARIABLE, IndexUnreachable, open_index
from ratchet.store.index import checkout_id, rebuild
from ratchet.store.sync import sync
from ratchet.store.tables import steps, versions
from tests.flows.conftest import make_checkout
from tests.store import fabricate
from tests.store.postgres import PASSWORD, Server
from tests.store.test_index import everything

HOSTILE = ['a "quoted", text', "two\nlines", "\\.", "\\N", "", None, "tab\there", "'; DROP TABLE steps; --", "ünï\ufffd", "NULL"]


def test_rows_are_equal_on_both_databases(tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    rows = [
        {"episode_id": f"e{i}", "t": i, "action_type": text, "reward": value, "valid": (True, False, None)[i % 3], "prompt_ids": [1] * i}
        for i, (text, value) in enumerate(zip(HOSTILE, [0.1, 1e-7, -3.5, None, 1 / 3, 1e30, 0.0, 2.0, -0.0, 7.0], strict=True))
    ]
    write_table(workspace / "data/rounds/1/harvest/steps.parquet", "steps", table_of("steps", rows))
    sync(tmp_path, workspace, "run-1")
    counts, here = rebuild(tmp_path), everything(open_index(tmp_path))
    monkeypatch.setenv(URL_VARIABLE, postgres.url())
    assert rebuild(tmp_path) == counts and counts["steps"] > len(HOSTILE)
    assert everything(open_index(tmp_path)) == here
    with open_index(tmp_path).connect() as connection:
        found = connection.execute(select(steps.c.action_type).where(steps.c.episode_id.in_([f"e{i}" for i in range(10)])))
        assert sorted(map(repr, found.scalars())) == sorted(map(repr, HOSTILE))


def _at_once(jobs: list[tuple[Path, str]]) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(len(jobs))
    writers = [context.Process(target=fabricate.sync_often, args=(root, run, ready)) for root, run in jobs]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(90)
        assert writer.exitcode == 0


def test_two_runs_that_write_at_once_are_both_there(tmp_path: Path, database: str) -> None:
    for run, salt in (("run-1", ""), ("run-2", "-2")):
        fabricate.start(tmp_path / "runs" / run, f"warm{salt}", 0.4, salt=salt)
    _at_once([(tmp_path, "run-1"), (tmp_path, "run-2")])
    found = everything(open_index(tmp_path))
    rebuild(tmp_path)
    assert everything(open_index(tmp_path)) == found and len(found["versions"]) == 2


def test_checkouts_of_a_team_share_a_database_and_leave_each_other_alone(
    tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, postgres.url())
    alice, bob = tmp_path / "alice", tmp_path / "bob"
    for root in (alice, bob):
        fabricate.start(root / "runs/run-1", "warm", 0.4)  # even the same version
    _at_once([(alice, "run-1"), (bob, "run-1")])
    both = everything(open_index(alice))
    assert len(both["versions"]) == 2 and checkout_id(alice) != checkout_id(bob)
    shutil.rmtree(alice / "runs")
    (alice / "registry" / f"{fabricate.version_of('warm')}.json").unlink()
    counts = rebuild(alice)
    assert set(counts.values()) == {0}
    with open_index(bob).connect() as connection:
        assert [row.checkout for row in connection.execute(select(versions))] == [checkout_id(bob)]
    assert rebuild(bob)["episodes"] == 16


def test_a_moved_checkout_stays_itself_and_a_copy_becomes_another(tmp_path: Path) -> None:
    first = checkout_id(tmp_path / "a")
    moved = (tmp_path / "a").rename(tmp_path / "b")
    assert checkout_id(moved) == first == checkout_id(moved)
    shutil.copytree(moved, tmp_path / "copy")
    assert checkout_id(tmp_path / "copy") != first and checkout_id(moved) == first


def test_a_new_database_gets_all_runs_with_the_first_sync(tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("run-1", "run-2"):
        fabricate.start(tmp_path / "runs" / run, run, 0.4)
        sync(tmp_path, tmp_path / "runs" / run, run)
    before = everything(open_index(tmp_path))
    monkeypatch.setenv(URL_VARIABLE, postgres.url())
    sync(tmp_path, tmp_path / "runs/run-2", "run-2")
    assert everything(open_index(tmp_path)) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda url: url.replace("s3cret", "s3cret-wrong"),
        lambda url: url.replace("/ratchet_", "/nowhere_"),
        lambda url: url.replace(f"{PASSWORD}@", "@") + f"?password={PASSWORD}&nonsense=1",
        lambda url: url.replace("postgresql", "mysql"),
        lambda url: url.replace("postgresql://", f"postgresql:{PASSWORD}"),
    ],
    ids=["password", "database", "option", "server", "no url"],
)
def test_what_will_not_pass_is_refused_at_once_in_a_line_without_the_password(
    tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: object
) -> None:
    monkeypatch.setenv(URL_VARIABLE, change(postgres.url()))  # type: ignore[operator]
    monkeypatch.setattr(module, "BACKOFF_S", ())
    with caplog.at_level(logging.DEBUG), pytest.raises(RatchetError, match=URL_VARIABLE) as error:
        rebuild(tmp_path)
    assert not isinstance(error.value, IndexUnreachable)
    for text in (str(error.value), caplog.text):
        assert "s3cret" not in text and "p@ss" not in text and "\n" not in str(error.value)


def test_a_stage_never_sees_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = make_checkout(tmp_path / "checkout", stages="stages: {show: {cmd: 'env', always_changed: true}}\n")
    monkeypatch.setenv(URL_VARIABLE, "postgresql://a:s3cret@localhost/x")
    monkeypatch.setenv("SEEN", "by the stage")
    lines: list[str] = []
    run_stage(checkout, "show", lines.append)
    assert "SEEN=by the stage" in lines and "s3cret" not in (checkout / "logs/show.log").read_text()


def test_a_server_that_comes_back_is_waited_for(tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, postgres.url())
    workspace, *_ = fabricate.whole_run(tmp_path)
    open_index(tmp_path)
    postgres.stop()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            postgres.start()

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    assert len(sync(tmp_path, workspace, "run-1")) == 2
    assert waits == [1.0, 2.0, 4.0]
    assert len(everything(open_index(tmp_path))["versions"]) == 3


def test_a_connection_lost_in_the_middle_is_made_again(tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends our session between two files, as its administrator or a restart would."""
    from ratchet.store import index

    url = postgres.url()
    monkeypatch.setenv(URL_VARIABLE, url)
    monkeypatch.setattr(module, "BACKOFF_S", (0.01, 0.01))
    workspace, *_ = fabricate.whole_run(tmp_path)
    load, calls = index.load_file, []

    def broken_once(connection: object, target: object, table: pa.Table, file_id: str) -> None:
        calls.append(table.num_rows)
        if len(calls) == 3:
            with create_engine(url.replace("postgresql", "postgresql+psycopg")).connect() as other:
                other.exec_driver_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        load(connection, target, table, file_id)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "load_file", broken_once)
    sync(tmp_path, workspace, "run-1")
    found = everything(open_index(tmp_path))
    rebuild(tmp_path)
    assert len(calls) > 4 and everything(open_index(tmp_path)) == found
