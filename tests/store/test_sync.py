from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.store.cards import read_card, read_cards
from ratchet.store.champions import champions, find
from ratchet.store.outbox import mark_delivered, pending
from ratchet.store.queries import comparison_of, versions_table
from ratchet.store.sync import sync
from tests.store import fabricate
from tests.store.fabricate import LINE, version_of


def registry_bytes(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "registry").glob("*.json")}


def test_a_run_becomes_cards_champion_and_events(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    events = sync(tmp_path, workspace, "run-1")
    assert [(event.kind, event.round, event.version) for event in events] == [
        ("model.promoted", 1, version_of("better")),
        ("model.kept", 2, version_of("same again")),
    ]
    card = read_card(tmp_path / "registry", version_of("better"))
    assert (card["round"], card["line"], card["parents"], card["created_by"]) == (1, LINE, [version_of("warm")], "run-1")
    assert card["hashes"]["data"] == {"demonstrations": "demo"} and len(card["hashes"]["weights"]) == 64
    assert [one["panel"] for one in card["evaluations"]] == ["select", "confirm", "test"]
    assert [one["event"] for one in card["decisions"]] == ["model.promoted"] and [one["round"] for one in card["checks"]] == [1, 2]
    assert card["runs"][0]["weights"] == "runs/run-1/models/rounds/1/version"
    assert champions(tmp_path / "registry") == {LINE: version_of("better")}
    assert read_json(tmp_path / "models/champion/ratchet.json")["version"] == version_of("better")


def test_syncing_again_changes_no_byte_and_tells_nothing(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    first = sync(tmp_path, workspace, "run-1")
    before = registry_bytes(tmp_path)
    mark_delivered(tmp_path, first[0].id)
    assert sync(tmp_path, workspace, "run-1") == [] and registry_bytes(tmp_path) == before
    assert [event.id for event in pending(tmp_path)] == [first[1].id]


def test_syncing_after_every_stage_comes_to_the_same_as_once_at_the_end(tmp_path: Path, database: str) -> None:
    step, once = tmp_path / "step", tmp_path / "once"
    workspace, events = step / "runs/run-1", []

    def synced() -> None:
        events.extend(sync(step, workspace, "run-1"))

    workspace.mkdir(parents=True)
    synced()
    fabricate.model(workspace / "models/warm/actor", "warm", 0, "warm_start")
    synced()
    warm = fabricate.start(workspace, "warm", 0.4)
    synced()
    write_json(workspace / "data/rounds/1/check/verdict.json", fabricate.verdict())
    synced()
    champion = fabricate.go_on(workspace, 1, warm, "better", 0.7)
    synced()
    fabricate.go_on(workspace, 2, champion, "same again", 0.71)
    synced()
    fabricate.finish(workspace, warm, champion)
    synced()
    other, *_ = fabricate.whole_run(once)
    assert [event.id for event in events] == [event.id for event in sync(once, other, "run-1")]

    def stripped(root: Path) -> list:
        lists = ("runs", "evaluations", "checks", "decisions")
        return [
            (c["version"], [[{k: v for k, v in e.items() if k != "at"} for e in c[n]] for n in lists])
            for c in read_cards(root / "registry")
        ]

    assert sorted(stripped(step)) == sorted(stripped(once))
    assert champions(step / "registry") == champions(once / "registry")


def test_half_a_run_is_normal(tmp_path: Path) -> None:
    """Killed after the evaluation of round 1: its version is a candidate, and nothing is said about it."""
    workspace = tmp_path / "runs/run-1"
    warm = fabricate.start(workspace, "warm", 0.4)
    fabricate.go_on(workspace, 1, warm, "better", 0.7)
    shutil.rmtree(workspace / "data/rounds/1/decision")
    (workspace / "data/rounds/2/harvest").mkdir(parents=True)
    (workspace / "models/rounds/2/version").mkdir(parents=True)
    assert sync(tmp_path, workspace, "run-1") == []
    assert {row["version"]: row["status"] for row in versions_table(tmp_path)} == {
        version_of("warm"): "champion",
        version_of("better"): "candidate",
    }


def test_outcomes_without_their_model_wait_for_it(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    hidden = (workspace / "models").rename(workspace / "hidden")
    sync(tmp_path, workspace, "run-1")
    assert read_cards(tmp_path / "registry") == [] and not (tmp_path / "models/champion").exists()
    hidden.rename(workspace / "models")
    sync(tmp_path, workspace, "run-1")
    assert champions(tmp_path / "registry") == {LINE: version_of("better")}


def test_a_failed_check_is_told_once_and_is_on_the_card(tmp_path: Path) -> None:
    workspace = tmp_path / "runs/run-1"
    warm = fabricate.start(workspace, "warm", 0.4)
    fabricate.stop(workspace, 1, warm)
    decision = (workspace / "data/rounds/1/decision").rename(tmp_path / "later")
    (event,) = sync(tmp_path, workspace, "run-1")
    assert (event.kind, event.round, event.data["name"]) == ("check.failed", 1, "replay_mismatch")
    decision.rename(workspace / "data/rounds/1/decision")
    assert sync(tmp_path, workspace, "run-1") == []
    card = read_card(tmp_path / "registry", version_of("warm"))
    assert [one["passed"] for one in card["checks"]] == [False]
    assert [one["event"] for one in card["decisions"]] == ["model.baseline", "run.stopped"]


def test_a_damaged_out_is_named_in_one_line(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    path = workspace / "data/rounds/2/decision/decision.json"
    for damage in ('{"round": 2, ', '{"round": 2}'):
        path.write_text(damage)
        with pytest.raises(RatchetError, match="data/rounds/2/decision/decision.json") as error:
            sync(tmp_path, workspace, "run-1")
        assert "\n" not in str(error.value)


def test_a_new_runs_baseline_does_not_take_the_lines_champion_away(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    second = tmp_path / "runs/run-2"
    warm = fabricate.start(second, "warm two", 0.3)
    sync(tmp_path, second, "run-2")
    assert champions(tmp_path / "registry") == {LINE: version_of("better")}
    worse = fabricate.go_on(second, 1, warm, "better than warm two", 0.5)
    assert worse["name"] == "better than warm two"
    assert [event.kind for event in sync(tmp_path, second, "run-2")] == ["model.promoted"]
    assert champions(tmp_path / "registry") == {LINE: version_of("better")}  # on the same panel it does worse
    best = fabricate.go_on(second, 2, worse, "best", 0.9)
    sync(tmp_path, second, "run-2")
    assert champions(tmp_path / "registry") == {LINE: version_of(best["name"])}
    sync(tmp_path, workspace, "run-1")  # an old run that is looked at again turns nothing back
    assert champions(tmp_path / "registry") == {LINE: version_of("best")}


def test_on_another_panel_the_newer_promotion_is_taken(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    second = tmp_path / "runs/run-2"
    warm = fabricate.start(second, "other games", 0.3, salt="-2")
    sync(tmp_path, second, "run-2")
    assert champions(tmp_path / "registry") == {LINE: version_of("better")}  # a baseline was measured against nobody
    fabricate.go_on(second, 1, warm, "promoted on other games", 0.6, salt="-2")
    sync(tmp_path, second, "run-2")
    sync(tmp_path, workspace, "run-1")  # an old run that is looked at again turns nothing back
    assert champions(tmp_path / "registry") == {LINE: version_of("promoted on other games")}
    with pytest.raises(RatchetError, match="their hashes differ"):
        comparison_of(tmp_path, version_of("better"), "champion", "confirm")


def test_lines_have_champions_of_their_own(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    second = tmp_path / "runs/run-2"
    fabricate.start(second, "big", 0.3, line="big")
    sync(tmp_path, second, "run-2")
    assert champions(tmp_path / "registry") == {LINE: version_of("better"), "big": version_of("big")}


def test_compare_says_what_the_report_says(tmp_path: Path) -> None:
    workspace, warm, champion, final = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    assert comparison_of(tmp_path, "warm", "champion") == final
    assert comparison_of(tmp_path, warm["version"][:6], champion["version"][:6]) == final
    decision = read_json(workspace / "data/rounds/1/decision/decision.json")
    assert comparison_of(tmp_path, "warm", "champion", "confirm") == decision["comparison"]
    back = comparison_of(tmp_path, "champion", "warm")
    assert back["gain"]["mean"] == pytest.approx(-final["gain"]["mean"])


def test_compare_still_says_it_when_the_runs_folder_is_gone(tmp_path: Path) -> None:
    workspace, *_, final = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    shutil.rmtree(workspace)
    assert comparison_of(tmp_path, "warm", "champion") == final
    with pytest.raises(RatchetError, match="dvc checkout"):
        comparison_of(tmp_path, "champion", "warm")


def test_a_version_that_was_not_measured_there_is_refused_with_a_way_out(tmp_path: Path) -> None:
    workspace, *_ = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    with pytest.raises(RatchetError, match="not measured on panel test .*try `--panel confirm`"):
        comparison_of(tmp_path, "champion", version_of("same again"))


def test_the_table_of_versions(tmp_path: Path) -> None:
    workspace, *_, final = fabricate.whole_run(tmp_path)
    sync(tmp_path, workspace, "run-1")
    rows = {row["version"]: row for row in versions_table(tmp_path)}
    assert [row["round"] for row in rows.values()] == [0, 1, 2]
    assert [row["status"] for row in rows.values()] == ["archived", "champion", "archived"]
    assert rows[version_of("better")]["test"] == final["b"]["success"] | {"n": fabricate.TASKS}
    assert rows[version_of("same again")]["test"] is None and versions_table(tmp_path, line="other") == []
    assert find(tmp_path / "registry", "warm")["version"] == version_of("warm")
