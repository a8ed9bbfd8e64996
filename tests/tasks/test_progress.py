"""What a running stage lets others see: lines of progress, and how fast it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.clock import CLOCK
from ratchet.settings import load
from ratchet.store.throughput import record_of
from tasks import progress as module, throughput
from tasks.common import Stage
from tasks.progress import Point, Progress, read_line
from tests.tasks.conftest import lay


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    return clock


def test_a_line_tells_rate_and_time_left_and_can_be_read_again(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress("warm_start@actor", 1_500_000, "tokens")
    now[0] += 10
    bar(150_000, "loss 1.098")
    line = capsys.readouterr().out.rstrip("\n")
    assert line == "warm_start@actor 10% 150.0k/1.5M tokens, 15.0k/s, 1:30 left  loss 1.098"
    assert read_line(line) == Point("warm_start@actor", 10, "150.0k/1.5M tokens, 15.0k/s, 1:30 left", "loss 1.098")


def test_the_first_line_has_a_rate_and_a_resumed_stage_counts_its_own_work_alone(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    bar = Progress("harvest@1 actor", 100, "episodes")
    bar.found(40)
    now[0] += 6
    bar(70)
    assert capsys.readouterr().out == "harvest@1 actor 70% 70/100 episodes, 5.0/s, 0:06 left\n"
    slow = Progress("evolve_online@1", 12, "iterations", every_s=0)
    now[0] += 90
    slow(3, "success 64.1 %")
    line = capsys.readouterr().out.rstrip("\n")
    assert line == "evolve_online@1 25% 3/12 iterations, 2.0/min, 4:30 left  success 64.1 %" and read_line(line) is not None
    unknown = Progress("warm_start@actor", 100, "tokens", every_s=0, first=None)
    unknown(40)
    now[0] += 6
    unknown(70)
    assert capsys.readouterr().out.splitlines()[1] == "warm_start@actor 70% 70/100 tokens, 5.0/s, 0:06 left"


@pytest.mark.parametrize("line", ["harvest@1 done in 3.0 s", "loss 10% of all", "prepare: 16000 train, 256 seen games", "", "100% sure"])
def test_other_lines_are_no_progress(line: str) -> None:
    assert read_line(line) is None


def test_a_stage_says_how_fast_it_is_while_it_runs_and_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lay(tmp_path)
    monkeypatch.setattr(throughput, "EVERY_S", 0.0)
    stage = Stage(folder, load(folder / "params.yaml"), "label", "1")
    CLOCK.counts["tokens_read"] += 50
    with CLOCK.phase("reading"):
        pass
    Progress(stage.title, 10, "episodes")(1)
    running = record_of(folder, "label@1")
    assert running is not None and (running["state"], running["counts"]) == ("running", {"tokens_read": 50})
    assert set(running["seconds"]) == {"reading", "other"} and running["reading_tokens_per_s"] > 0 and running["peak_memory_mb"] > 1
    (stage.out("data/rounds/1/labels")).mkdir()
    stage.metrics({})
    stage.finish()
    ended = record_of(folder, "label@1")
    assert ended is not None and ended["state"] == "done" and ended["measured_at"] > running["measured_at"]
    assert ended["line"] == stage.settings.line and len(ended["params_hash"]) == 12 and "cores" in ended["machine"]
    assert "throughput" not in json.dumps([str(path.relative_to(folder)) for out in ("data", "reports") for path in (folder / out).rglob("*")])
    Progress("elsewhere", 10, "episodes")(1)  # the stage is over
    assert record_of(folder, "label@1") == ended


def test_a_clock_begins_anew_with_each_stage_and_a_skipped_one_measures_nothing(tmp_path: Path) -> None:
    folder = lay(tmp_path)
    CLOCK.counts["tokens_read"] += 50
    stage = Stage(folder, load(folder / "params.yaml"), "label", "1")
    assert CLOCK.counts == {}
    stage.skip("the run stopped")
    assert record_of(folder, "label@1") is None
