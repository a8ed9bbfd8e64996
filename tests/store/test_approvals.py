"""Approval by a person: what waits, what an answer does, and that nothing changes without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ratchet.errors import RatchetError
from ratchet.store import approvals, cards, champions, outbox
from ratchet.store.persons import reign
from ratchet.store.queries import versions_table
from ratchet.store.sync import sync
from tests.store import fabricate

WARM, BETTER = fabricate.version_of("warm"), fabricate.version_of("better")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    workspace, *_ = fabricate.whole_run(root)
    (workspace / "params.yaml").write_text("approval: person\n")
    sync(root, workspace, "run-1")
    return root


@pytest.fixture
def waiting(made: Path, tmp_path: Path) -> Path:
    """A checkout with one run whose first round was promoted and waits."""
    return Path(shutil.copytree(made, tmp_path / "checkout", symlinks=True))


def test_what_the_rule_promoted_waits_and_nothing_follows_it_until_somebody_says_so(waiting: Path) -> None:
    (one,) = approvals.waiting(waiting)
    assert (one.version, one.run, one.round, one.champion) == (BETTER, "run-1", 1, WARM) and "gain on confirm" in one.reasons[0]
    assert champions.champions(waiting / "registry") == {fabricate.LINE: WARM}
    assert [row["status"] for row in versions_table(waiting) if row["version"] == BETTER] == ["candidate"]
    assert "approval.needed" in [event.kind for event in outbox.pending(waiting)]
    assert reign(cards.read_cards(waiting / "registry"), fabricate.LINE) == [WARM]  # a rollback goes to nobody who never reigned


@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_is_a_file_with_a_reason_and_is_given_once(waiting: Path, approved: bool) -> None:
    approvals.answer(waiting, BETTER[:6], approved, " looked at twenty episodes ", "Ada")
    registry = waiting / "registry"
    assert champions.champions(registry) == {fabricate.LINE: BETTER if approved else WARM}
    (path,) = (registry / "approvals").glob("*.json")
    value = json.loads(path.read_text())
    assert (value["approved"], value["reason"], value["by"], value["run"]) == (approved, "looked at twenty episodes", "Ada", "run-1")
    last = cards.read_card(registry, BETTER)["decisions"][-1]
    assert (last["by"], last["reasons"], last["event"]) == ("Ada", ["looked at twenty episodes"], "model.promoted" if approved else "model.kept")
    assert [event.kind for event in outbox.pending(waiting)][-1] == last["event"]
    assert approvals.waiting(waiting) == []
    with pytest.raises(RatchetError, match="waits for nobody's answer .waiting: none.; `ratchet promote`"):
        approvals.answer(waiting, BETTER, True, "again", "Ada")
    count = len(cards.read_card(registry, BETTER)["decisions"])
    sync(waiting, waiting / "runs/run-1", "run-1")
    assert len(cards.read_card(registry, BETTER)["decisions"]) == count


def test_an_answer_whose_doing_was_killed_is_done_by_the_next_sync(waiting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(approvals, "settle", lambda root: None)
        approvals.answer(waiting, BETTER, True, "good", "Ada")
    assert champions.champions(waiting / "registry") == {fabricate.LINE: WARM}
    sync(waiting, waiting / "runs/run-1", "run-1")
    assert champions.champions(waiting / "registry") == {fabricate.LINE: BETTER}


def test_an_answer_without_a_reason_or_for_a_version_without_weights_is_none(waiting: Path) -> None:
    with pytest.raises(RatchetError, match="--reason: is empty"):
        approvals.answer(waiting, BETTER, True, " ", "Ada")
    for path in (waiting / "runs/run-1/models").rglob("ratchet.json"):
        path.unlink()
    with pytest.raises(RatchetError, match="its weights are no longer here"):
        approvals.answer(waiting, BETTER, True, "good", "Ada")
    assert not (waiting / "registry/approvals").exists() and len(approvals.waiting(waiting)) == 1
