"""One episode turn by turn: found by the beginning of its id, and never able to do anything to the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.text import one_line, visible
from ratchet.episodes.files import table_of, write_table
from tests.flows.test_cli import call
from tests.store.fabricate import episodes

HOSTILE = "[bold]mug[/bold] \x1b[31mred\x1b]8;;http://x\x07\r\x00\x9b2J\u202eevil\u200b"


def hostile(folder: Path) -> None:
    """One episode whose texts would colour, link, overwrite, clear and reorder a terminal."""
    row = {"episode_id": "feedface-0001", "env": "alfworld", "task_id": "t\x1b[2J", "policy_id": "actor", "solved": False, "score": 0.5}
    row |= {"round": 1, "iteration": 2, "sample": 0, "seed": 1, "terminated": False, "truncated": True, "n_steps": 1, "n_tokens": 3}
    step = {"episode_id": "feedface-0001", "t": 0, "observation": HOSTILE, "reply": f"thought\n> {HOSTILE}", "action": HOSTILE}
    step |= {"prompt_ids": [], "reply_ids": [], "logprobs": [], "entropy": [], "reward": 0.0, "score": 0.0}
    step |= {"format_ok": True, "valid": False, "repeated": True}
    write_table(folder / "episodes.parquet", "episodes", table_of("episodes", [row]))
    write_table(folder / "steps.parquet", "steps", table_of("steps", [step]))


@pytest.fixture
def played(inside: Path) -> Path:
    episodes(inside / "runs/one/data/rounds/1/harvest", "aaaa-bbbb")
    hostile(inside / "runs/one/data/final")
    return inside


def test_an_episode_is_shown_turn_by_turn(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "episode", "aaaa-bbbb-0002")
    assert code == 0, err
    assert "solved, score 1, 5 steps" in out and out.count("You see a mug.") == 5 and "« > look" in out
    value = json.loads(call(capsys, "episode", "aaaa-bbbb-0002", "--json")[1])
    assert value["run"] == "one" and [step["t"] for step in value["steps"]] == [0, 1, 2, 3, 4]


def test_hostile_text_reaches_the_terminal_as_escapes_and_brackets_as_they_are(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "episode", "feed")
    assert code == 0
    assert "[bold]mug[/bold] \\x1b[31mred\\x1b]8;;" in out and "\\u202eevil\\u200b" in out
    assert not [one for one in out if one not in "\n\t" and not one.isprintable()]
    assert "not admissible, nothing changed" in out and "truncated" in out


def test_a_shard_of_a_stage_that_still_runs_is_found_too(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = played / "runs/one/.ratchet/scratch/evolve_online@1/0123/parts"
    episodes(parts, "live-part")
    for kind in ("episodes", "steps"):
        (parts / f"{kind}.parquet").rename(parts / f"iteration 001-00000.{kind}.parquet")
    assert "live-part-0003" in call(capsys, "episode", "live-part-0003")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zzzzzz"], "no episode 'zzzzzz' in any run"),
        (["aaa"], "type at least 4 characters"),
        (["aaaa-bbbb"], "is the beginning of 8 ids"),
        (["aaaa-bbbb-0002", "--run", "two"], "no such run"),
    ],
)
def test_what_is_not_one_episode_is_refused(played: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    code, out, err = call(capsys, "episode", *arguments)
    assert (code, out) == (2, "") and said in err


def test_only_line_breaks_and_tabs_survive() -> None:
    assert visible("a\tb\nc\r\x7f\u2028é漢") == "a\tb\nc\\r\\x7f\\u2028é漢"
    assert one_line("a\nb\t") == "a\\nb\\t"
