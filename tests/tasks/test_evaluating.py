"""A version that is measured outside its run plays as it did inside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.evaluating import evaluate_version
from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.evaluation.panels import read_panel
from ratchet.store.champions import find
from ratchet.store.sync import sync


@pytest.fixture(scope="module")
def root(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the finished run in its registry."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(finished, folder / "runs" / "run-1")
    sync(folder, folder / "runs" / "run-1", "run-1")
    return folder


def test_the_whole_panel_is_that_of_the_run_and_a_part_is_the_same_for_all(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    panel = read_panel(root / "runs/run-1/data/panels/confirm.json")
    whole = evaluate_version(root, "champion", None, "confirm", None)
    assert (whole["panel_hash"], whole["n"], whole["available"]) == (panel.hash, len(panel.tasks), len(panel.tasks))
    assert whole["success"]["low"] <= whole["success"]["mean"] <= whole["success"]["high"]
    assert "episodes" in capsys.readouterr().out  # progress
    part = evaluate_version(root, "champion", None, "confirm", 5)
    warm = evaluate_version(root, "warm", None, "confirm", 5)
    assert part["n"] == warm["n"] == 5 and part["panel_hash"] == warm["panel_hash"] != whole["panel_hash"]
    played = read_table(Path(part["outcomes"]), "outcomes", ["task_id"])["task_id"].to_pylist()
    assert set(played) < {task.task_id for task in panel.tasks}


def test_a_pattern_takes_the_tasks_of_its_kind(root: Path) -> None:
    panel = read_panel(root / "runs/run-1/data/panels/test.json")
    kind = panel.tasks[0].stratum
    result = evaluate_version(root, find(root / "registry", "champion")["version"][:6], f"alfworld/{kind}", "test", None)
    assert result["n"] == sum(task.stratum == kind for task in panel.tasks) and list(result["by_stratum"]) == [kind]
    assert (result["env"], result["pattern"]) == ("alfworld", kind)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("champion", "alfworld/nothing-like-it", "test", None), "no task of panel test matches"),
        (("champion", "alfwrld", "test", None), "did you mean 'alfworld'"),
        (("champion", None, "testt", None), "no such panel; there is confirm"),
        (("champion", None, "../test", None), "no such panel"),
        (("champion", None, "test", 0), "not a count from 1"),
        (("ffffff", None, "test", None), "no version"),
    ],
)
def test_what_cannot_be_played_is_refused_in_a_line(root: Path, arguments: tuple, said: str) -> None:
    with pytest.raises(RatchetError, match=said) as error:
        evaluate_version(root, *arguments)
    assert "\n" not in str(error.value)


def test_weights_that_are_gone_are_named(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "registry", tmp_path / "registry")
    with pytest.raises(RatchetError, match="weights are no longer on this machine"):
        evaluate_version(tmp_path, "champion", None, "test", None)
