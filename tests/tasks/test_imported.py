"""Demonstrations from elsewhere reach the warm start, except those of tasks that a panel measures with."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pytest

from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.evaluation.panels import read_panel
from tests.flows.test_cli import call
from tests.flows.test_second_day_interchange import CALLS, CHAT, ETO
from tests.tasks.conftest import run_stage


def test_imported_demonstrations_are_imitated_unless_a_panel_measures_their_tasks(
    finished: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = read_panel(copy / "data/panels/test.json").tasks[0].task_id
    chats = tmp_path / "chats.jsonl"
    chats.write_text("\n".join(map(json.dumps, (ETO, CHAT, CALLS, {**CHAT, "task_id": measured}))))
    monkeypatch.chdir(copy)
    name = call(capsys, "import", str(chats))[1].strip().rpartition("=")[2]
    params = copy / "params.yaml"
    params.write_text(params.read_text().replace("imported: null", f"imported: {name}"))
    run_stage(copy, "demonstrate")
    assert "3 imported episodes, 1 left out" in capsys.readouterr().out
    after, before = (read_table(folder / "data/demonstrations/episodes.parquet", "episodes") for folder in (copy, finished))
    given = after.filter(pc.equal(after["policy_id"], "imported"))
    assert after.num_rows == before.num_rows + 3 and measured not in given["task_id"].to_pylist()

    params.write_text(params.read_text().replace("action_format: plain", "action_format: tagged"))
    with pytest.raises(RatchetError, match="writes actions as plain"):
        run_stage(copy, "demonstrate")
    params.write_text(params.read_text().replace("action_format: tagged", "action_format: plain"))
    (copy / "imports" / name / "steps.parquet").unlink()
    with pytest.raises(RatchetError, match="is not what was imported"):
        run_stage(copy, "demonstrate")
