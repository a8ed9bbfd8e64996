from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.envs.base import Task
from ratchet.errors import RatchetError
from ratchet.evaluation.panels import make_panel, panel_hash, read_panel, require_same, write_panel

TASKS = [Task("alfworld", "0.4.2", f"game-{i}", "test", "pick", f"scene-{i % 3}", seed=i) for i in range(9)]


def test_a_panel_comes_back_as_it_was_written(tmp_path: Path) -> None:
    panel = make_panel("test", TASKS)
    write_panel(tmp_path / "test.json", panel)
    assert read_panel(tmp_path / "test.json") == panel


@pytest.mark.parametrize("change", [{"env": "x"}, {"env_version": "x"}, {"task_id": "x"}, {"seed": 99}])
def test_every_part_of_a_task_that_fixes_it_is_in_the_hash(change: dict) -> None:
    assert panel_hash([replace(TASKS[0], **change), *TASKS[1:]]) != panel_hash(TASKS)


def test_order_and_grouping_are_not_in_the_hash() -> None:
    assert panel_hash(TASKS[::-1]) == panel_hash(TASKS)
    assert panel_hash([replace(task, cluster="other") for task in TASKS]) == panel_hash(TASKS)


def test_panels_of_different_tasks_are_refused() -> None:
    require_same(make_panel("a", TASKS), make_panel("b", TASKS))
    with pytest.raises(RatchetError, match="different tasks.*one panel"):
        require_same(make_panel("a", TASKS), make_panel("b", TASKS[1:]))


def test_no_tasks_and_double_tasks_are_refused() -> None:
    with pytest.raises(RatchetError, match="holds no tasks"):
        make_panel("test", [])
    with pytest.raises(RatchetError, match="game-0.*twice"):
        make_panel("test", [*TASKS, TASKS[0]])


def _changed(path: Path, change: object) -> None:
    write_panel(path, make_panel("test", TASKS))
    value = json.loads(path.read_text())
    change(value)  # type: ignore[operator]
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["tasks"].pop(),
        lambda value: value["tasks"][0].update(seed=7),
        lambda value: value["tasks"][0].pop("cluster"),
        lambda value: value.pop("hash"),
    ],
)
def test_a_panel_that_was_tampered_with_is_refused_in_one_line(tmp_path: Path, change: object) -> None:
    path = tmp_path / "test.json"
    _changed(path, change)
    with pytest.raises(RatchetError, match="dvc repro prepare") as error:
        read_panel(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
