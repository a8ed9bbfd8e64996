"""A run whose team database goes away, through the real flow and a real PostgreSQL server that is really stopped; an index that is locked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flows import workspace
from flows.evolve import RunFailed, evolve
from flows.stages import StageResult
from flows.view import View, watching
from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.store import database as module
from ratchet.store.database import URL_VARIABLE, open_index
from ratchet.store.index import rebuild
from ratchet.store.sync import sync
from tests.flows.conftest import make_checkout
from tests.store import fabricate
from tests.store.conftest import postgres
from tests.store.postgres import Server
from tests.store.test_index import everything

__all__ = ["postgres"]
FETCHED = """
stages:
  fetch:
    cmd: cp -r {made}/data {made}/models .
    params: [seed]
    outs: [data, models]
  seal:
    cmd: python stage.py seal reports/seal.json
    deps: [stage.py, data]
    outs: [reports/seal.json]
"""


class Stops(View):
    """Stops the server when `stage` has ended, before what it made is indexed."""

    def __init__(self, server: Server, stage: str) -> None:
        self.server, self.stage, self.notes = server, stage, []

    def stage_ends(self, result: StageResult) -> None:
        if result.name == self.stage:
            self.server.stop()

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_server_that_stays_away_stops_the_run_which_resumes_with_nothing_lost(
    tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch, prefect_api: dict[str, str]
) -> None:
    fabricate.whole_run(tmp_path, "made")
    checkout = make_checkout(tmp_path / "checkout", stages=FETCHED.format(made=tmp_path / "runs/made"))
    monkeypatch.setenv(URL_VARIABLE, postgres.url())
    monkeypatch.setattr(module, "BACKOFF_S", (0.1, 0.1))
    view = Stops(postgres, "fetch")
    token = watching.set(view)
    try:
        with pytest.raises(RunFailed) as caught:
            evolve(checkout=checkout, settings=["rounds=1"])
    finally:
        watching.reset(token)
        postgres.start()
    (run,) = workspace.list_runs(checkout)
    said = str(caught.value)
    assert f"127.0.0.1:{postgres.port}" in said and f"start it again and go on with `ratchet run --resume {run.run_id}`" in said
    assert "\n" not in said and "s3cret" not in said
    assert run.state == "failed" and read_json(run.workspace / "logs/run.json")["stages"][-1]["name"] == "fetch"

    assert evolve(resume=run.run_id, checkout=checkout) == run.run_id
    found = everything(open_index(checkout))
    assert len(found["versions"]) == 3 and len(found["alerts"]) == 2 and len(found["steps"]) > 100
    rebuild(checkout)
    assert everything(open_index(checkout)) == found
    assert read_json(run.workspace / "logs/run.json")["state"] == "finished"


def test_an_index_that_another_program_holds_is_taken_up_later_with_nothing_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    monkeypatch.setitem(module.PRAGMAS, "busy_timeout", "200")
    rebuild(tmp_path)
    with closing(sqlite3.connect(tmp_path / "registry/index.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RatchetError, match="database is locked.*another program has it open for writing.*nothing is lost$"):
            sync(tmp_path, workspace, "run-1")
    assert len(list((tmp_path / "registry").glob("*.json"))) == 4 and len(list((tmp_path / ".ratchet/outbox").glob("*.json"))) == 2
    sync(tmp_path, workspace, "run-1")
    found = everything(open_index(tmp_path))
    assert len(found["versions"]) == 3 and len(found["alerts"]) == 2 and len(found["steps"]) > 100
