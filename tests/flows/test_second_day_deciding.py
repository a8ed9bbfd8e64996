"""Promote and rollback by a person: champions change, and every decision stays on its card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.store import cards, champions, outbox
from ratchet.store.persons import ROLLED_BACK, reign
from tests.flows.test_cli import add_version, call

A, B, C = "aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"


@pytest.fixture
def three(inside: Path) -> Path:
    for number, version in enumerate((A, B, C)):
        add_version(inside, version, number, [True])
    return inside


def champion(root: Path) -> str:
    return champions.champions(root / "registry")["quickstart"]


def test_a_person_promotes_and_the_reason_stays_on_the_card(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "promote", "bbbb", "--reason", "better by eye", "--by", "Ada")
    assert code == 0, err
    assert out == f"{B} is champion of line quickstart, decided by Ada: better by eye\n"
    entry = cards.read_card(three / "registry", B)["decisions"][-1]
    assert (entry["by"], entry["event"], entry["reasons"], entry["previous"]) == ("Ada", "model.promoted", ["better by eye"], None)
    assert champion(three) == B and (three / "models" / "champion" / "ratchet.json").is_file()
    assert [event.kind for event in outbox.pending(three)] == ["model.promoted"]
    rows = json.loads(call(capsys, "versions", "--json")[1])
    assert [(row["status"], row["decided"]) for row in rows] == [("candidate", ""), ("champion", "promoted"), ("candidate", "")]


def test_a_version_tells_what_was_decided_about_it_and_why(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing was decided about it yet" in call(capsys, "versions", "aaaa")[1]
    assert call(capsys, "promote", "bbbb", "--reason", "better \x1b[31mby eye", "--by", "Ada")[0] == 0
    assert call(capsys, "promote", "cccc", "--reason", "terse", "--by", "Ada")[0] == 0
    assert call(capsys, "rollback", "--reason", "customers complain", "--by", "Bob")[0] == 0
    lines = call(capsys, "versions", "bbbb")[1].splitlines()
    assert lines[0].startswith(f"{B}: champion of line quickstart, actor ") and lines[1].startswith("test: 100.0 %")
    told = [f"{event}, line quickstart, by {who}" for event, who in (("model.promoted", "Ada"), (ROLLED_BACK, "Bob"))]
    assert [line[17:] for line in lines if line.startswith("20")] == told
    assert [line for line in lines if line.startswith("  ")] == ["  better [31mby eye", "  customers complain"]
    decisions = json.loads(call(capsys, "versions", "champion", "--json")[1])["decisions"]
    assert [one["by"] for one in decisions] == ["Ada", "Bob"]
    code, _, err = call(capsys, "versions", "ffff")
    assert code == 2 and "ffff" in err


def test_rollback_goes_back_one_champion_at_a_time_and_never_forward(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in (A, B, C):
        assert call(capsys, "promote", version, "--reason", "r")[0] == 0
    assert call(capsys, "rollback", "--reason", "worse")[0] == 0 and champion(three) == B
    assert call(capsys, "rollback", "quickstart", "--reason", "worse")[0] == 0 and champion(three) == A
    code, _, err = call(capsys, "rollback", "--reason", "worse")
    assert code == 2 and "no champion is known before" in err and champion(three) == A
    assert call(capsys, "rollback", "--to", "cccc", "--reason", "r")[0] == 0 and champion(three) == C
    kinds = [[entry["event"] for entry in cards.read_card(three / "registry", version)["decisions"]] for version in (A, B, C)]
    assert kinds == [["model.promoted", ROLLED_BACK], ["model.promoted", ROLLED_BACK], ["model.promoted", ROLLED_BACK]]


def test_the_same_decision_taken_again_is_on_record_again(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in (A, B, A, B):
        assert call(capsys, "promote", version, "--reason", "again")[0] == 0
    assert [len(cards.read_card(three / "registry", version)["decisions"]) for version in (A, B)] == [2, 2]
    assert reign(cards.read_cards(three / "registry"), "quickstart") == [A, B, A, B]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["promote", "dddd", "--reason", "r"], "no version 'dddd'"),
        (["promote", A, "--reason", " "], "--reason: is empty"),
        (["promote", A], "Missing option '--reason'"),
        (["rollback", "--reason", "r"], "which line? there are champions of none"),
    ],
)
def test_what_cannot_be_decided_changes_nothing(three: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    code, _, err = call(capsys, *arguments)
    assert code == 2 and said in err
    assert champions.champions(three / "registry") == {}


def test_a_champion_is_not_promoted_again_nor_a_version_without_weights(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "promote", A, "--reason", "r")[0] == 0
    assert "is champion of line quickstart already" in call(capsys, "promote", A, "--reason", "r")[2]
    (three / "models" / B / "ratchet.json").unlink()
    assert "its weights are no longer here" in call(capsys, "promote", B, "--reason", "r")[2]
    assert cards.read_card(three / "registry", B)["decisions"] == []


def test_what_waits_is_listed_and_answered_in_a_terminal(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ratchet.store.approvals import AWAITS

    assert call(capsys, "approve")[1] == "nothing waits for a person\n"
    for number, version in enumerate((A, B)):
        add_version(inside, version, number, [True])
    assert call(capsys, "promote", A, "--reason", "first")[0] == 0
    entry = {"line": "quickstart", "event": "model.promoted", "promoted": True, "stop": None, "reasons": ["gain\x1b[31m"], AWAITS: True, "by": "rule"}
    cards.append_decision(inside / "registry", B, entry | {"run": "r", "round": 1, "candidate": B, "champion": B, "comparison": None, "alpha": None})
    listed = call(capsys, "approve")[1]
    assert B in listed and "gain\\x1b[31m" in listed and "\x1b" not in listed
    assert call(capsys, "approve", B)[2] == "--reason is missing; say why, it stays on record with the version\n"
    assert "VERSION is missing" in call(capsys, "approve", "--refuse")[2]
    code, out, err = call(capsys, "approve", B[:4], "--refuse", "--reason", "odd habits", "--by", "Ada")
    assert (code, out) == (0, f"{B} does not become champion of line quickstart, decided by Ada: odd habits\n"), err
    assert champion(inside) == A and "waits for nobody's answer" in call(capsys, "approve", B, "--reason", "r")[2]


def test_alerts_are_listed_with_what_became_of_them_at_each_receiver(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "alerts")[1] == "no events yet\n"
    event = outbox.Event("check.failed", "r-1", 1, None, None, "round 1: \x1b[31mred")
    outbox.put(inside, event)
    outbox.note_deliveries(inside, event.id, {"team": outbox.Delivery("failed", "a", "b", 3, "2026-01-01T10:30:00", "answered 500")}, settled=False)
    listed = call(capsys, "alerts")[1]
    assert "team: not taken, 3 times (answered 500), again at 10:30 UTC" in listed and "waits" in listed and "\x1b" not in listed
    (row,) = json.loads(call(capsys, "alerts", "--json")[1])
    assert row["alerts"]["team"]["attempts"] == 3 and row["event"] == "check.failed"


def test_an_exported_version_brings_what_the_registry_knows(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ratchet.models.build import save_model
    from tests.models import tiny

    weights = inside / "models" / "mine"
    vocab = len(tiny.template().tokenizer)
    version = save_model(tiny.model(vocab), tiny.tokenizer_folder(), weights, {"stage": "warm_start", "action_format": "plain", "parents": [A]})
    add_version(inside, A, 0, [True])
    card = {"version": version, "line": "quickstart", "round": 1, "iteration": 0, "stage": "evolve_online", "actor": "actor", "parents": [A]}
    run = {"run": "r", "weights": "models/mine", "line": "quickstart", "round": 1}
    cards.add_version(inside / "registry", {**card, "tokenizer_id": "t", "hashes": {}}, run)
    code, _, err = call(capsys, "export", version[:6], "out")
    assert code == 0, err
    evidence = json.loads((inside / "out" / "evidence.json").read_text())
    assert evidence["card"]["version"] == version and [one["version"] for one in evidence["lineage"]] == [A]
    assert version in (inside / "out" / "README.md").read_text() and (inside / "out" / "model.safetensors").is_file()
    assert "is there and not empty" in call(capsys, "export", version, "out")[2]


def test_an_evaluation_is_told_with_its_interval_and_panel(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import evaluating

    asked = []
    success = {"mean": 0.25, "low": 0.1, "high": 0.4}
    result = {"version": A, "env": "alfworld", "pattern": "look", "n": 20, "success": success, "panel_hash": "0123456789abcdef", "errors": 0}
    result |= {"steps": 4.2, "outcomes": "o.parquet", "by_stratum": {"look": {"n": 20, "success": success}}}

    def evaluated(*arguments: object, **_guide: object) -> dict[str, object]:
        asked.append(arguments)
        print("progress")
        return result

    monkeypatch.setattr(evaluating, "evaluate_version", evaluated)
    code, out, err = call(capsys, "evaluate", "champion", "--env", "alfworld/look", "--tasks", "20")
    assert (code, err) == (0, "progress\n") and asked == [(inside, "champion", "alfworld/look", "test", 20)]
    assert f"{A} on 20 tasks of alfworld/look, panel test" in out and "25.0 % [10.0, 40.0]" in out and "panel: 0123456789ab," in out
    assert json.loads(call(capsys, "evaluate", "champion", "--json")[1]) == result
