"""How a stage ends that cannot go on: one clear line, exit code 2, and what was made is kept."""

from __future__ import annotations

import importlib
import json
import logging
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratchet.files import storage_trouble
from tasks.common import main
from tests.envs import toy
from tests.tasks import unsteady
from tests.tasks.conftest import lay, run_stage
from tests.tasks.test_durability import _evolved as _evolved, delete_outs, evolved as evolved, stage_of
from tests.tasks.test_pipeline import _environment, digests


def in_process(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int:
    """The exit code of a stage's command, run in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as ended:
        main(name, importlib.import_module(f"tasks.{name}").run, arguments[0].removeprefix("--") if arguments else None)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(("module", "key", "limit"), [("demonstrate", (), 2000), ("warm_start", ("--actor", "small"), 20_000)])
def test_a_disk_that_is_really_full_is_one_line_exit_code_2_and_nothing_made_is_lost(
    finished: Path, copy: Path, module: str, key: tuple[str, ...], limit: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file may grow beyond a limit: once this shows in what Python writes, once in weights that are written without Python."""
    delete_outs(stage_of(copy, module, key[1] if key else None))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        assert in_process(copy, monkeypatch, module, *key) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "a file may not become as large as it has to be" in line and "then run it again" in line
    assert not list(copy.rglob("*.part"))
    run_stage(copy, module, key[1] if key else None)
    assert digests(copy) == digests(finished)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs mount")
def test_a_full_file_system_is_told_by_name(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    scratch = copy / ".ratchet"
    shutil.rmtree(scratch)
    scratch.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(scratch)], capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        assert in_process(copy, monkeypatch, "demonstrate") == 2
    finally:
        subprocess.run(["umount", str(scratch)], check=True)
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "the disk is full; free some space, then run it again" in line


def test_a_stage_does_not_wait_for_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    from collections import deque

    from flows.stages import _read

    command = [sys.executable, "-c", "for n in range(20000): print('line', n)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        _read(process, Path("/dev/full"), deque(maxlen=3), lines.append)
    assert process.returncode == 0 and len(lines) == 20000


def test_a_command_whose_disk_is_full_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from flows import cli

    def full() -> None:
        raise OSError(28, "No space left on device", "registry/x.json")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and said == "registry/x.json: the disk is full; free some space, then give the command again"


def test_a_folder_that_cannot_be_written_to_is_one_line_and_exit_code_2(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copy / ".ratchet")
    (copy / ".ratchet").write_text("in the way")
    assert in_process(copy, monkeypatch, "baseline") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert ".ratchet/scratch" in line and "what should be a folder is none" in line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "/x/a.json"), "/x/a.json: the disk is full"),
        (OSError(30, "Read-only file system", "/x"), "/x: the file system is read-only"),
        (PermissionError(13, "Permission denied", "/x"), "/x: permission is denied"),
        (Exception("Error while serializing: I/O error: No space left on device (os error 28)"), "the disk is full"),
    ],
)
def test_trouble_with_the_disk_is_told_apart(error: Exception, said: str) -> None:
    assert (storage_trouble(error) or "").startswith(said)


@pytest.mark.parametrize("error", [OSError(2, "No such file"), ValueError("x"), Exception("(os error 2)")])
def test_other_errors_are_not_taken_for_trouble_with_the_disk(error: Exception) -> None:
    assert storage_trouble(error) is None


def test_a_checkpoint_of_another_configuration_is_refused_by_name(
    evolved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = stage_of(evolved, "evolve_online", "1").scratch
    shutil.copytree(scratch, evolved / "elsewhere")
    params = evolved / "params.yaml"
    params.write_text(params.read_text().replace("max_grad_norm: 1.0", "max_grad_norm: 0.9"))
    other = stage_of(evolved, "evolve_online", "1").scratch
    assert other != scratch and not scratch.exists(), "of itself a stage never finds it"
    shutil.copytree(evolved / "elsewhere", other, dirs_exist_ok=True)
    assert in_process(evolved, monkeypatch, "evolve_online", "--round", "1") == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{other / 'checkpoint'}: a checkpoint of another configuration" in line and "move it away" in line


def test_ctrl_c_ends_a_stage_within_5_s_and_says_how_to_go_on(finished: Path, copy: Path) -> None:
    delete_outs(stage_of(copy, "demonstrate", None))
    begun = copy / ".ratchet/scratch/demonstrate"
    shutil.rmtree(begun)
    process = subprocess.Popen([sys.executable, "-m", "tasks.demonstrate"], cwd=copy, env=_environment(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert process.returncode == 130 and said.strip() == "demonstrate: interrupted; run it again to go on from what is done"
    run_stage(copy, "demonstrate")
    assert digests(copy) == digests(finished)


@pytest.fixture
def weather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As long as this file is there, some environments stop their processes."""
    path = tmp_path / "weather"
    path.touch()
    monkeypatch.setenv(unsteady.WEATHER, str(path))
    return path


def unsteady_run(folder: Path, stopped: int) -> Path:
    from ratchet.evaluation.panels import make_panel, write_panel

    lay(folder, f"env.name={unsteady.NAME}", f"env.options.stopped={stopped}", "env.step_timeout_s=0.5", "env.max_error_share=0.1",
        "demonstrate.episodes=10")  # fmt: skip
    (folder / "data/games").mkdir(parents=True)
    for split in ("train", "select", "confirm", "test"):
        write_panel(folder / f"data/panels/{split}.json", make_panel(split, [toy.task(number) for number in range(10)]))
    return folder


def test_an_environment_that_is_really_stopped_ends_its_episode_as_error_and_the_stage_goes_on(tmp_path: Path, weather: Path) -> None:
    from ratchet.episodes.files import read_table

    folder = unsteady_run(tmp_path / "run", stopped=1)
    run_stage(folder, "demonstrate")
    rows = read_table(folder / "data/demonstrations/episodes.parquet", "episodes").to_pylist()
    [failed] = [row for row in rows if row["error"] is not None]
    assert failed["task_id"] == "toy-0" and "0.5 s" in failed["error"] and not failed["solved"]
    assert sum(row["solved"] for row in rows) == 9
    assert json.loads((folder / "reports/metrics/demonstrate.json").read_text())["errors"] == 1


def test_too_many_stopped_environments_fail_the_stage_and_say_why_until_they_are_mended(
    tmp_path: Path, weather: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unsteady_run(tmp_path / "run", stopped=2)
    assert in_process(folder, monkeypatch, "demonstrate") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert re.search(r"2 of 10 episodes ended as errors, above env.max_error_share=0.1 \(the first: timeout: .*0.5 s.*\)", line)
    assert not (folder / "data/demonstrations").exists()
    weather.unlink()
    run_stage(folder, "demonstrate")
    assert json.loads((folder / "reports/metrics/demonstrate.json").read_text())["success"] == 1.0


@pytest.mark.parametrize("left", [0, 18, 150])
def test_a_lock_file_that_a_kill_tore_is_put_aside_before_a_run_goes_on(tmp_path: Path, left: int) -> None:
    from flows.mending import mend

    whole = "schema: '2.0'\nstages:\n  one:\n    cmd: python one.py\n    outs:\n    - path: data\n      hash: md5\n      md5: " + "a" * 32 + "\n      size: 5\n"
    lock, lists = tmp_path / "dvc.lock", tmp_path / ".dvc/tmp/rwlock"
    lists.parent.mkdir(parents=True)
    lock.write_text(whole)
    lists.write_text("{}")
    assert mend(tmp_path) == [] and lock.read_text() == whole and lists.exists()
    lock.write_text(whole[:left] + ("" if left < 150 else "\n  two: {cmd"))
    lists.write_text("")
    said = mend(tmp_path)
    assert len(said) == 2 and not lists.exists() and not lock.exists()
    assert (tmp_path / ".ratchet/damaged/dvc.lock").is_file() and "taken from DVC's cache" in said[1]


def test_a_record_of_a_stage_that_a_kill_left_empty_is_removed_before_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc.repo import Repo

    from flows.mending import mend

    monkeypatch.setattr(logging.getLogger("dvc"), "handlers", [])  # of a command that another test ran here: its stream is closed
    (tmp_path / "in").write_text("1")
    (tmp_path / "dvc.yaml").write_text("stages:\n  one:\n    cmd: cp in out\n    deps: [in]\n    outs: [out]\n")
    monkeypatch.chdir(tmp_path)
    with Repo.init(no_scm=True) as repo:
        repo.reproduce()
        [record] = (tmp_path / ".dvc/cache/runs").glob("*/*/*")
        record.unlink()
        (tmp_path / "dvc.lock").unlink()
        (tmp_path / "out").unlink()
        with pytest.raises(Exception, match="failed to reproduce"):
            repo.reproduce()
        assert [line.partition(":")[0] for line in mend(tmp_path)] == [str(record.parent)]
        assert [stage.name for stage in repo.reproduce()] == ["one"]


def test_files_of_a_run_that_is_at_work_are_left_alone(tmp_path: Path) -> None:
    from flows import workspace
    from flows.mending import mend

    (tmp_path / "dvc.lock").write_text("")
    with workspace.running(tmp_path):
        assert mend(tmp_path) == [] and (tmp_path / "dvc.lock").exists()
