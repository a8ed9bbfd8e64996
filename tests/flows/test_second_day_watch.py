"""A run followed from another terminal, by what it writes."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from flows import following, workspace
from flows.record import RunRecord
from flows.stages import StageResult
from flows.view import View
from ratchet.rendering import render_run
from tests.flows.test_cli import call

ORDER = ["prepare", "evaluate@0", "seal"]


class Heard(View):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def stage_begins(self, name: str, place: int, count: int) -> None:
        self.said.append(f"{place}/{count} {name}")

    def line(self, text: str) -> None:
        self.said.append(text)

    def stage_ends(self, result: StageResult) -> None:
        self.said.append(f"{result.name} {result.state}")


def log(folder: Path, stage: str, *lines: str) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    with (folder / "logs" / f"{stage}.log").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


@pytest.fixture
def folder(inside: Path) -> Path:
    return workspace.create(inside, "one", render_run(inside, None, []))


def test_a_running_run_is_followed_to_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "EVERY_S", 0.01)
    heard = Heard()
    with workspace.running(folder):
        record = RunRecord(folder, "one", ORDER)
        watcher = threading.Thread(target=following.Follower(folder, heard).follow, daemon=True)
        watcher.start()
        log(folder, "prepare", "--- 2026-01-01 00:00:00", "an attempt that was killed", "--- 2026-01-01 01:00:00", "Running stage 'prepare':")
        log(folder, "prepare", "prepare 50 %")
        wait_for(heard, "prepare 50 %")
        log(folder, "prepare", "prepare done")
        record.stage(StageResult("prepare", "ran", 1.0))
        wait_for(heard, "prepare ran")
        for name in ORDER[1:]:
            log(folder, name, "--- 2026-01-01 02:00:00", f"{name} \x1b[2Jdone")
            record.stage(StageResult(name, "ran", 1.0))
        record.end("finished")
    watcher.join(5)
    assert not watcher.is_alive()
    kept = [line for line in heard.said if line != "an attempt that was killed"]
    assert kept == [
        *["1/3 prepare", "prepare 50 %", "prepare done", "prepare ran"],
        *["2/3 evaluate@0", "evaluate@0 \\x1b[2Jdone", "evaluate@0 ran"],
        *["3/3 seal", "seal \\x1b[2Jdone", "seal ran"],
    ]


def wait_for(heard: Heard, text: str) -> None:
    end = time.monotonic() + 5
    while text not in heard.said:
        assert time.monotonic() < end, heard.said
        time.sleep(0.005)


def test_a_run_that_failed_says_why_and_exits_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = RunRecord(folder, "one", ORDER)
    log(folder, "prepare", "--- now", "prepare: no games")
    record.end("failed", "prepare: no games")
    code, out, err = call(capsys, "watch")
    assert code == 1 and "one (failed), 3 stages" in out
    assert err.strip() == "one is failed: prepare: no games; go on with `ratchet run --resume one`"


def test_a_run_that_was_killed_is_told_apart_from_a_running_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunRecord(folder, "one", ORDER)
    code, _, err = call(capsys, "watch", "one")
    assert code == 1 and "one is killed" in err


def test_the_newest_running_run_is_watched_by_default(inside: Path, folder: Path) -> None:
    other = workspace.create(inside, "two", render_run(inside, None, []))
    for one in (folder, other):
        (one / "logs").mkdir()
        (one / "logs" / "run.json").write_text(json.dumps({"state": "running", "stages": [], "order": ORDER, "run_id": one.name}))
    assert following.choose(inside, None) == other
    with workspace.running(folder):
        assert following.choose(inside, None) == folder


def test_without_runs_it_says_how_to_start_one(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "watch")
    assert code == 2 and "start one with `ratchet run`" in err
