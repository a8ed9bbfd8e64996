"""A run's workspace holds exactly what the checkout holds, its own params, and the checkout's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows import workspace
from flows.dag import split_name, stage_names
from ratchet.errors import RatchetError
from ratchet.rendering import render_run
from ratchet.settings import dump_params, load
from ratchet.store import cards, champions
from tests.flows.conftest import CHECKOUT, make_checkout, run_git


def new(checkout: Path, *sets: str) -> Path:
    return workspace.create(checkout, workspace.new_id("try"), render_run(checkout, None, list(sets)))


def test_what_is_changed_or_new_comes_along_and_what_is_ignored_does_not(checkout: Path) -> None:
    (checkout / "stage.py").write_text("print('changed')\n")
    (checkout / "odd name ü.txt").write_text("new")
    (checkout / "link").symlink_to("stage.py")
    (checkout / "staged.sh").write_text("#!/bin/sh\n")
    (checkout / "staged.sh").chmod(0o755)
    run_git(checkout, "add", "staged.sh")
    run_git(checkout, "rm", "--quiet", "presets/alfworld.yaml")
    (checkout / "presets" / "quickstart.yaml").unlink()
    (checkout / "data").mkdir()
    (checkout / "data" / "big").write_text("an out")
    folder = new(checkout, "rounds=3")
    assert (folder / "stage.py").read_text() == "print('changed')\n"
    assert (folder / "odd name ü.txt").read_text() == "new"
    assert os.readlink(folder / "link") == "stage.py"
    assert os.access(folder / "staged.sh", os.X_OK)
    assert not (folder / "presets" / "alfworld.yaml").exists() and not (folder / "presets" / "quickstart.yaml").exists()
    assert not (folder / "data").exists()
    assert load(folder / "params.yaml").last == "3"
    assert load(checkout / "params.yaml").last == "2"


def test_two_workspaces_do_not_know_of_each_other(checkout: Path) -> None:
    first, second = new(checkout), new(checkout, "rounds=1")
    assert first != second
    assert [run.run_id for run in workspace.list_runs(checkout)] == [first.name, second.name]
    assert {run.state for run in workspace.list_runs(checkout)} == {"new"}
    assert workspace.find_root(first / "data") == checkout
    assert workspace.find_root(checkout / "presets") == checkout
    assert run_git(checkout, "status", "--porcelain") == ""


def test_a_removed_workspace_leaves_nothing_in_git(checkout: Path) -> None:
    folder = new(checkout)
    workspace.remove(checkout, folder.name)
    assert not folder.exists()
    assert str(folder) not in run_git(checkout, "worktree", "list")
    with pytest.raises(RatchetError, match="no such run; there is none yet"):
        workspace.find(checkout, folder.name)
    with pytest.raises(RatchetError, match="no such run"):
        workspace.find(checkout, "../checkout")


def test_a_workspace_at_work_is_neither_removed_nor_entered_twice(checkout: Path) -> None:
    folder = new(checkout)
    with workspace.running(folder):
        with pytest.raises(RatchetError, match="another run is at work there"):
            workspace.remove(checkout, folder.name)
    workspace.remove(checkout, folder.name)


def test_dvc_shares_the_cache_and_outs_stay_usable(checkout: Path) -> None:
    """The second workspace gets the first one's outs from the cache, as read-only links, and can still make them anew."""

    def repro(folder: Path, *arguments: str) -> str:
        command = [sys.executable, "-m", "dvc", "repro", *arguments]
        env = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
        return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout

    first, second = new(checkout, "rounds=1"), new(checkout, "rounds=1")
    assert "Running stage 'prepare'" in repro(first, "prepare")
    assert "is cached - skipping run" in repro(second, "prepare")
    out = second / "data" / "prepare" / "value.json"
    assert out.stat().st_nlink > 1 or out.stat().st_mode & 0o200  # a hard link, or a reflink
    before = (first / "data" / "prepare" / "value.json").read_bytes()
    assert "Running stage 'prepare'" in repro(second, "--force", "prepare")
    assert out.read_bytes() == before
    assert (checkout / ".dvc" / "cache" / "files").is_dir()
    assert not (first / ".dvc" / "cache").exists()
    assert "?? dvc.lock" in run_git(first, "status", "--porcelain")


def test_remotes_and_a_cache_elsewhere_are_taken_over(checkout: Path, tmp_path: Path) -> None:
    (checkout / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {tmp_path}/elsewhere\n['remote \"team\"']\n    password = a%b\n")
    text = (new(checkout) / ".dvc" / "config.local").read_text()
    assert f"dir = {tmp_path}/elsewhere" in text
    assert "password = a%b" in text


def test_waivers_are_those_of_the_checkout(checkout: Path) -> None:
    folder = new(checkout)
    (checkout / "waivers.yaml").write_text("waivers: [{check: a, reason: b}]\n")
    workspace.refresh_waivers(checkout, folder)
    assert "check: a" in (folder / "waivers.yaml").read_text()


def test_what_cannot_be_copied_is_refused_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    params = render_run(CHECKOUT, None, [])
    for name, said in (("bare", "not a git repository"), ("uncommitted", "no commit yet"), ("inner", "not the top of its git repository")):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        if name == "uncommitted":
            run_git(folder, "init", "--quiet")
        if name == "inner":
            folder = make_checkout(tmp_path / "outer") / "presets"
        with pytest.raises(RatchetError, match=said) as caught:
            workspace.create(folder, "one", params)
        assert "\n" not in str(caught.value)
        assert not (folder / "runs").exists()


def test_a_repository_inside_the_checkout_is_refused(checkout: Path) -> None:
    (checkout / "inner").mkdir()
    run_git(checkout / "inner", "init", "--quiet")
    (checkout / "inner" / "file").write_text("x")
    with pytest.raises(RatchetError, match="inner.*: a git repository inside the checkout cannot be copied"):
        new(checkout)
    assert not list((checkout / "runs").glob("*")) if (checkout / "runs").exists() else True


def test_a_merge_conflict_is_refused(checkout: Path) -> None:
    run_git(checkout, "checkout", "--quiet", "-b", "other")
    (checkout / "stage.py").write_text("a\n")
    run_git(checkout, "commit", "--quiet", "--all", "--message", "a")
    run_git(checkout, "checkout", "--quiet", "-")
    (checkout / "stage.py").write_text("b\n")
    run_git(checkout, "commit", "--quiet", "--all", "--message", "b")
    subprocess.run(["git", "merge", "other"], cwd=checkout, capture_output=True, check=False)
    with pytest.raises(RatchetError, match="unresolved merge conflict"):
        new(checkout)


def test_a_failed_creation_is_undone(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (checkout / "new.txt").write_text("new")
    monkeypatch.setattr(workspace.shutil, "copy2", full)
    with pytest.raises(RatchetError, match=r"new\.txt: cannot be copied into the workspace \(No space left on device\)"):
        new(checkout)
    assert workspace.list_runs(checkout) == []
    assert "runs" not in run_git(checkout, "worktree", "list")


def test_a_start_becomes_a_concrete_version_with_its_weights(checkout: Path) -> None:
    weights = checkout / "models" / "kept"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_text("weights")
    (weights / "model.safetensors").chmod(0o444)
    (weights / "ratchet.json").write_text('{"version": "0123456789ab"}')
    card = {
        "version": "0123456789ab",
        "line": "quickstart",
        "round": 1,
        "iteration": 5,
        "stage": "evaluate",
        "actor": "actor",
        "parents": [],
    }
    run = {"run": "r", "weights": "models/kept", "line": "quickstart", "round": 1}
    cards.add_version(checkout / "registry", {**card, "tokenizer_id": "t", "hashes": {}}, run)
    champions.set_champion(checkout, "quickstart", "0123456789ab")
    folder = new(checkout, "start=champion")
    assert load(folder / "params.yaml").start == "0123456789ab"
    copy = folder / "models" / "start" / "model.safetensors"
    assert copy.read_text() == "weights"
    assert copy.stat().st_mode & 0o200
    with pytest.raises(RatchetError, match="line 'other' has no champion; did you mean 'quickstart'"):
        new(checkout, "start=champion", "line=other")
    (weights / "ratchet.json").unlink()
    with pytest.raises(RatchetError, match="the weights of version 0123456789ab are no longer here"):
        new(checkout, "start=champion")
    assert workspace.list_runs(checkout) == workspace.list_runs(checkout)[:1]


def test_here_refuses_a_start_that_moves(checkout: Path) -> None:
    (checkout / "params.yaml").write_text(dump_params(render_run(checkout, None, ["start=champion"])))
    with pytest.raises(RatchetError, match="write the version's id"):
        workspace.open_here(checkout)


def test_a_git_hooks_environment_does_not_lead_astray(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert (new(checkout) / "stage.py").is_file()


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_stage_list_is_what_the_rounds_imply(tmp_path: Path, rounds: int) -> None:
    """dvc.yaml itself, with the params of so many rounds: string keys make stages, and rounds come one after the other."""
    folder = make_checkout(tmp_path / "checkout")
    (folder / "dvc.yaml").write_bytes((CHECKOUT / "dvc.yaml").read_bytes())
    params = render_run(folder, None, [f"rounds={rounds}"])
    (folder / "params.yaml").write_text(dump_params(params))
    names = stage_names(folder)
    expected = ["prepare", "demonstrate", *(f"warm_start@{actor}" for actor in params["actors"]), "evaluate@0", "baseline"]
    of_a_round = ["harvest", "label", "check", "buffer", "fit_meter", "fit_critic", "evolve_offline", "evolve_online", "evaluate", "drift", "decide"]
    expected += [f"{name}@{key}" for key in params["rounds"] for name in of_a_round]
    assert names == [*expected, "final", "report", "seal"]
    assert stage_names(folder) == names
    assert split_name("harvest@1") == ("harvest", "1") and split_name("seal") == ("seal", None)


def test_a_graph_that_dvc_cannot_read_is_one_line(checkout: Path) -> None:
    (checkout / "dvc.yaml").write_text("stages:\n  a: {cmd: a, deps: [b], outs: [a]}\n  b: {cmd: b, deps: [a], outs: [b]}\n")
    with pytest.raises(RatchetError, match=r"dvc\.yaml: DVC cannot read its stages") as caught:
        stage_names(checkout)
    assert "\n" not in str(caught.value)
