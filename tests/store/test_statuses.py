"""Candidate, champion, archived: on the card each time it changes, whoever decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.files import read_json, write_json
from ratchet.store.cards import read_card
from ratchet.store.database import URL_VARIABLE
from ratchet.store.persons import promote, rollback
from ratchet.store.queries import versions_table
from ratchet.store.statuses import renew_statuses
from ratchet.store.sync import sync
from ratchet.store.workspace import commit_of
from tests.store import fabricate
from tests.store.fabricate import version_of


@pytest.fixture(autouse=True)
def sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)


def history(root: Path, name: str) -> list[str]:
    return [one["status"] for one in read_card(root / "registry", version_of(name))["statuses"]]


def test_a_card_tells_how_its_version_fared(tmp_path: Path) -> None:
    workspace = tmp_path / "runs/run-1"
    warm = fabricate.start(workspace, "warm", 0.4)
    sync(tmp_path, workspace, "run-1")
    assert history(tmp_path, "warm") == ["candidate", "champion"]
    fabricate.model(workspace / "models/rounds/1/version", "better", 1, parents=("warm",))
    sync(tmp_path, workspace, "run-1")
    assert history(tmp_path, "better") == ["candidate"]
    fabricate.go_on(workspace, 1, warm, "better", 0.7)
    for _ in range(2):
        sync(tmp_path, workspace, "run-1")
    assert history(tmp_path, "better") == ["candidate", "champion"] and history(tmp_path, "warm") == ["candidate", "champion", "archived"]
    rollback(tmp_path, "worse in use", "Ada")
    promote(tmp_path, version_of("better"), "it was not", "Ada")
    assert history(tmp_path, "better") == ["candidate", "champion", "archived", "champion"]
    last = read_card(tmp_path / "registry", version_of("better"))["statuses"][-1]
    assert (last["line"], last["event"], last["run"]) == ("quickstart", "model.promoted", "run-1") and last["at"]
    assert {row["version"]: row["status"] for row in versions_table(tmp_path)} == {version_of("warm"): "archived", version_of("better"): "champion"}


def test_a_registry_that_is_written_once_at_the_end_tells_the_same(tmp_path: Path) -> None:
    fabricate.whole_run(tmp_path)
    sync(tmp_path, tmp_path / "runs/run-1", "run-1")
    assert history(tmp_path, "warm") == ["candidate", "champion", "archived"] and history(tmp_path, "better") == ["candidate", "champion"]


def test_what_was_not_written_is_written_by_the_next_call(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    path = tmp_path / "registry" / f"{version_of('better')}.json"
    write_json(path, {key: value for key, value in read_json(path).items() if key != "statuses"})  # a card of before
    assert renew_statuses(tmp_path) == 1 and history(tmp_path, "better") == ["champion"]
    assert renew_statuses(tmp_path) == 0


def test_a_run_names_the_commit_that_it_was_made_of(tmp_path: Path) -> None:
    from flows.workspace import git

    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    (tmp_path / "ratchet").mkdir()
    (tmp_path / "ratchet/one.py").write_text("1\n")
    git(tmp_path, "add", "--all")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "one")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    assert commit_of(tmp_path) == {"id": head, "changed": False}
    (tmp_path / "params.yaml").write_text("a run's own\n")
    assert commit_of(tmp_path) == {"id": head, "changed": False}
    (tmp_path / "ratchet/two.py").write_text("2\n")
    assert commit_of(tmp_path) == {"id": head, "changed": True}
    (tmp_path / "inside").mkdir()
    assert commit_of(tmp_path / "inside") is None
