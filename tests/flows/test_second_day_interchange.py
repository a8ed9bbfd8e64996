"""Conversations in and out: what a line says becomes an episode, broken lines are named, and what goes out comes back the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows import workspace
from ratchet.episodes.files import read_table
from ratchet.episodes.interchange import read_file, rows_of
from ratchet.episodes.labels import label
from ratchet.errors import RatchetError
from ratchet.rendering import render_run
from tests.flows.test_cli import call
from tests.store.fabricate import episodes as fabricate

ETO = {
    "id": "scienceworld_7",
    "conversations": [
        {"from": "human", "value": "You are an agent."},
        {"from": "gpt", "value": "OK. I'll follow your instructions."},
        {"from": "human", "value": "Find a fork.\nYou are in the hall."},
        {"from": "gpt", "value": "Thought: Forks are in kitchens.\nI go there.\nAction: go to kitchen"},
        {"from": "human", "value": "You see a fork."},
        {"from": "gpt", "value": "Thought: There it is.\nAction: focus on fork"},
        {"from": "human", "value": "Done."},
    ],
}
CHAT = {
    "task_id": "t1",
    "success": False,
    "score": 0.5,
    "messages": [
        {"role": "system", "content": "Act."},
        {"role": "user", "content": [{"type": "text", "text": "A room."}]},
        {"role": "assistant", "content": "look"},
        {"role": "user", "content": "A mug."},
        {"role": "assistant", "content": "take mug"},
    ],
}
CALLS = {
    "messages": [
        {"role": "user", "content": "A room."},
        {"role": "assistant", "content": "I look.", "tool_calls": [{"function": {"name": "act", "arguments": '{"action": "look"}'}}]},
        {"role": "tool", "content": "A mug."},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "search", "arguments": {"query": "mug"}}}]},
    ]
}
BROKEN = [
    ("{", "not valid JSON"),
    ("7", "is int, not an object"),
    (json.dumps({"messages": [{"role": "robot", "content": "x"}]}), "role 'robot'"),
    (json.dumps({"messages": [{"role": "assistant", "content": "look"}]}), "nothing was observed before"),
    (json.dumps({"messages": [{"role": "user", "content": "A room."}]}), "holds no action"),
    (json.dumps({**CHAT, "score": 87}), "no number from 0 to 1"),
    (json.dumps({**CHAT, "success": "yes"}), "neither true nor false"),
    ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "two\\nlines"}]}', "holds no action"),
    (json.dumps(CHAT), "is the same as line 2"),
    ("[" * 100_000, "recursion"),
]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "my chats.jsonl"
    lines = [json.dumps(ETO), json.dumps(CHAT), json.dumps(CALLS), "", *(line for line, _ in BROKEN)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_eto_trajectories_lose_the_acknowledgement_and_keep_thoughts() -> None:
    episode, steps = rows_of(ETO, "scienceworld", "plain", "file/1")
    assert (episode["task_id"], episode["solved"], episode["n_steps"]) == ("scienceworld_7", True, 2)
    assert steps[0]["observation"] == "You are an agent.\n\nFind a fork.\nYou are in the hall."
    assert [step["reply"] for step in steps] == ["Forks are in kitchens.\nI go there.\n> go to kitchen", "There it is.\n> focus on fork"]
    assert [step["action"] for step in steps] == ["go to kitchen", "focus on fork"]


def test_chats_of_bare_actions_and_tool_calls_are_read() -> None:
    episode, steps = rows_of(CHAT, "alfworld", "plain", "file/2")
    assert (episode["solved"], episode["score"]) == (False, 0.5)
    assert [(step["observation"], step["reply"]) for step in steps] == [("Act.\n\nA room.", "> look"), ("A mug.", "> take mug")]
    _, steps = rows_of(CALLS, "alfworld", "tagged", "file/3")
    assert [step["reply"] for step in steps] == ["<think>I look.</think><action>look</action>", '<action>search {"query": "mug"}</action>']


def test_broken_lines_are_counted_and_named_and_the_rest_is_kept(chats: Path) -> None:
    found = read_file(chats, "alfworld", "plain")
    assert [one["task_id"] for one in found.episodes] == ["scienceworld_7", "t1", "my chats/3"]
    assert len(found.problems) == len(BROKEN)
    for number, (problem, (_, said)) in enumerate(zip(found.problems, BROKEN, strict=True), start=5):
        assert problem.startswith(f"line {number}: ") and said in problem
    episodes, steps = found.tables()
    assert label(episodes.sort_by("episode_id"), steps.sort_by([("episode_id", "ascending"), ("t", "ascending")])).num_rows == 6


def test_a_json_list_is_read_as_well_and_a_file_without_any_conversation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps([ETO, 3]))
    assert read_file(tmp_path / "list.json", "alfworld", "plain").problems == ["item 2: is int, not an object with messages or conversations"]
    (tmp_path / "none.jsonl").write_text("{}\n")
    with pytest.raises(RatchetError, match="no line is a conversation with actions .line 1: has no list"):
        read_file(tmp_path / "none.jsonl", "alfworld", "plain")


def test_an_import_is_named_by_its_content_and_laid_into_runs_that_name_it(
    inside: Path, chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "import", str(chats))
    assert code == 0, err
    assert "3 episodes (2 solved), 6 steps; 10 lines left out" in out and "line 5: not valid JSON" in out
    name = out.strip().splitlines()[-1].rpartition("=")[2]
    assert call(capsys, "import", str(chats))[1] == out
    assert (inside / "imports" / name / "import.json").is_file()
    params = render_run(inside, None, [f"demonstrate.imported={name}", "demonstrate.episodes=0"])
    folder = workspace.create(inside, "one", params)
    assert (folder / "imports" / name / "steps.parquet").is_file()
    code, _, err = call(capsys, "run", "--set", "demonstrate.imported=other-123")
    assert code == 2 and f"no such import; there is {name}" in err
    assert "episodes: 0 leaves nothing to imitate" in call(capsys, "run", "--set", "demonstrate.episodes=0")[2]
    assert "no such format" in call(capsys, "import", str(chats), "--format", "xml")[2]


def test_what_goes_out_comes_back_the_same(inside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = workspace.create(inside, "one", render_run(inside, None, []))
    fabricate(folder / "data/rounds/1/harvest", "harvested")
    fabricate(folder / "data/final", "final")
    code, _, err = call(capsys, "export-episodes", str(tmp_path / "out.jsonl"), "--stage", "harvest@1", "--solved")
    assert code == 0 and "4 episodes of one written" in err
    found = read_file(tmp_path / "out.jsonl", "alfworld", "plain")
    assert not found.problems and [one["solved"] for one in found.episodes] == [True] * 4
    episodes, steps = (read_table(folder / f"data/rounds/1/harvest/{kind}.parquet", kind) for kind in ("episodes", "steps"))
    assert [one["task_id"] for one in found.episodes] == [one["task_id"] for one in episodes.to_pylist() if one["solved"]]
    kept = [(one["observation"], one["reply"], one["action"]) for one in steps.to_pylist()][:5]
    assert [(one["observation"], one["reply"], one["action"]) for one in found.steps[:5]] == kept
    assert len(call(capsys, "export-episodes", "-")[1].splitlines()) == 16
    code, _, err = call(capsys, "export-episodes", "-", "--stage", "harvest@2")
    assert code == 2 and "there is final, harvest@1" in err
