"""What a person sees of a running stage: bars in a terminal, lines elsewhere, and how fast it is in both."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from flows import view as views
from flows.live import Running
from flows.speed import speed_rows, speed_text
from flows.stages import StageResult
from flows.view import PlainView, RichView
from tests.store.fabricate import measured

LINE = "warm_start@actor 15% 232.1k/1.5M tokens, 7.0k/s, 3:00 left  loss 1.098"


def shown(running: Running) -> str:
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=False).print(running)
    return out.getvalue()


def test_speed_is_told_by_share_rate_and_memory(tmp_path: Path) -> None:
    record = measured(tmp_path, "harvest@1", decoding=6.0)
    assert speed_text(record) == "decoding 60 % (50 tokens/s), environment 10 %, other 30 %; 512 MB at the peak"
    measured(tmp_path, "evaluate@1", at="2026-01-02T00:00:00.000000+00:00")
    measured(tmp_path, "harvest@2", state="running")
    rows = speed_rows(tmp_path)
    assert [row["stage"] for row in rows] == ["harvest@1", "evaluate@1"]
    assert rows[0] | {"decoding %": 60.0, "decoding tokens/s": 50, "reading %": 0.0, "learning tokens/s": None, "peak MB": 512} == rows[0]


def test_a_terminal_shows_bars_with_rate_and_time_left(tmp_path: Path) -> None:
    running = Running(tmp_path, "warm_start@actor", 3, 21)
    assert running.take(LINE) and not running.take("warm_start@actor: 1,070,208 parameters")
    measured(tmp_path, "warm_start@actor", state="running")
    text = shown(running)
    assert "warm_start@actor  3/21" in text and " 15 % 232.1k/1.5M tokens, 7.0k/s, 3:00 left  loss 1.098" in text
    assert "━" in text and "decoding 30 % (100 tokens/s)" in text


def test_a_part_has_a_bar_of_its_own_until_it_is_over() -> None:
    running = Running(None, "evolve_online@1", 9, 21)
    assert not running.take("evolve_online@1 iteration 001 100% 9/9 episodes, 3.0/s")  # no bar would tell of it, so it is printed
    assert running.take("evolve_online@1 0% 0/12 iterations, 0.0/s")
    assert running.take("evolve_online@1 iteration 001 40% 4/9 episodes, 3.0/s, 0:02 left  25.0 % solved")
    assert "iteration 001: 4/9 episodes" in shown(running) and "0/12 iterations" in shown(running)
    assert running.take("evolve_online@1 iteration 001 100% 9/9 episodes, 3.0/s")
    assert "iteration 001" not in shown(running)


def test_lines_that_are_bars_are_not_printed_too_and_the_end_tells_the_speed(tmp_path: Path) -> None:
    out = io.StringIO()
    view = RichView(Console(file=out, width=160, force_terminal=True, color_system=None))
    view.header("run", tmp_path, "smoke", ["warm_start@actor"])
    view.stage_begins("warm_start@actor", 1, 1)
    view.line("warm_start@actor: 12 parameters")
    view.line(LINE)
    measured(tmp_path, "warm_start@actor")
    view.stage_ends(StageResult("warm_start@actor", "ran", 10.0))
    said = out.getvalue()
    assert "12 parameters" in said and "decoding 30 % (100 tokens/s)" in said.rpartition("✓")[2]
    assert view.live is None


def test_a_log_gets_lines_and_now_and_then_how_fast_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(views.time, "monotonic", lambda: clock[0])
    view = PlainView()
    view.header("run", tmp_path, "smoke", ["warm_start@actor"])
    view.stage_begins("warm_start@actor", 1, 1)
    measured(tmp_path, "warm_start@actor", state="running")
    for clock[0] in (5.0, 31.0, 40.0):
        view.line(LINE)
    said = capsys.readouterr().out
    assert said.count(LINE) == 3 and said.count("so far decoding 30 %") == 1
    view.stage_ends(StageResult("warm_start@actor", "ran", 10.0))
    assert capsys.readouterr().out == "    took 10.0 s\n"  # the record of an attempt that did not end is none of this one
    measured(tmp_path, "warm_start@actor")
    view.stage_ends(StageResult("warm_start@actor", "ran", 10.0))
    view.stage_ends(StageResult("warm_start@actor", "unchanged", 1.0))
    told, unchanged = capsys.readouterr().out.splitlines()
    assert told.startswith("    took 10.0 s: decoding 30 %") and unchanged == "    took 1.0 s (unchanged)"
