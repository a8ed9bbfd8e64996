"""Retention: old runs give what nothing needs, and whatever is live stays, in the cache too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import retention, workspace
from flows.record import RunRecord
from ratchet.rendering import render_run
from ratchet.store import cards, champions
from tests.flows.conftest import make_checkout, run_git
from tests.flows.test_cli import call

STAGES = """
stages:
  train:
    cmd: python train.py
    params: [seed]
    outs: [models/rounds/0/version, data/rounds/0/harvest]
"""
TRAIN = """
import json, os, yaml
seed = yaml.safe_load(open("params.yaml"))["seed"]
for folder in ("models/rounds/0/version", "data/rounds/0/harvest"):
    os.makedirs(folder)
version = f"{seed:012x}"
open("models/rounds/0/version/model.safetensors", "w").write(f"weights {seed}" * 9999)
json.dump({"version": version}, open("models/rounds/0/version/ratchet.json", "w"))
open("data/rounds/0/harvest/episodes.parquet", "w").write(f"episodes {seed}" * 9999)
json.dump({"n": seed}, open("data/rounds/0/harvest/count.json", "w"))
"""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the finished runs `one` (its version decided), `two`, `three` and `four`, made by DVC into one cache."""
    root = make_checkout(tmp_path / "checkout", STAGES)
    (root / "train.py").write_text(TRAIN)
    for seed, name in enumerate(("one", "two", "three", "four"), start=1):
        folder = workspace.create(root, name, render_run(root, None, [f"seed={seed}"]))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=folder, check=True, env={**os.environ, "PATH": path})
        RunRecord(folder, name, ["train"]).end("finished")
        (folder / "reports").mkdir()
        (folder / "reports" / "report.html").write_text("page")
        add_card(root, name, f"{seed:012x}")
        time.sleep(0.01)
    decide(root, "000000000001")
    monkeypatch.chdir(root)
    monkeypatch.setattr(retention, "YOUNG_S", -1.0)
    return root


def add_card(root: Path, run: str, version: str) -> None:
    card = {"version": version, "line": "quickstart", "round": 0, "iteration": 0, "stage": "warm_start", "actor": "actor", "parents": []}
    entry = {"run": run, "weights": f"runs/{run}/models/rounds/0/version", "line": "quickstart", "round": 0}
    cards.add_version(root / "registry", {**card, "tokenizer_id": "t", "hashes": {}}, entry)


def decide(root: Path, version: str) -> None:
    entry = {"run": "r", "round": 0, "line": "quickstart", "by": "rule", "event": "model.kept", "promoted": False, "reasons": [], "champion": version}
    cards.append_decision(root / "registry", version, entry)


def dvc(folder: Path, *arguments: str) -> str:
    return subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def objects(root: Path) -> int:
    return len(list((root / ".dvc/cache/files/md5").glob("??/*")))


@pytest.mark.slow
def test_old_runs_go_and_what_is_running_decided_kept_or_champion_stays_whole_in_dvcs_eyes(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, files = objects(old), sorted(old.rglob("*"))
    champions.set_champion(old, "quickstart", "000000000002")
    with workspace.running(old / "runs/three"):
        (old / "runs/three/models/rounds/0/version/model.safetensors").unlink()  # a stage is about to write it anew
        dry = json.loads(call(capsys, "gc", "--keep", "0", "--json")[1])
        assert {one["run"]: one["versions_kept"] for one in dry["old"]} == {"one": ["000000000001"], "two": ["000000000002"], "four": []}
        assert dry["running"] == ["three"] and "a run is on" in dry["cache_left_alone"] and not dry["applied"]
        assert len([path for path in files if not os.path.lexists(path)]) == 1  # the one above
        assert call(capsys, "gc", "--keep", "0", "--apply")[0] == 0
    assert sorted(path.name for path in (old / "runs").iterdir()) == ["one", "three", "two"]
    assert (old / "runs/three/data/rounds/0/harvest/episodes.parquet").is_file() and objects(old) == before
    dvc(old / "runs/three", "checkout", "-q")
    with workspace.running(old):  # a run in the checkout itself
        assert "a run is on" in call(capsys, "gc", "--keep", "1")[1]

    dry = json.loads(call(capsys, "gc", "--keep", "1", "--json")[1])
    assert dry["kept"] == ["three"] and dry["cache_objects"] > 0 and dry["freed_bytes"] > 0
    code, out, err = call(capsys, "gc", "--keep", "1", "--apply")
    assert code == 0, err
    assert f"freed {dry['freed_bytes'] / 2**20:.1f} MiB" in out and before - objects(old) == dry["cache_objects"]
    one = old / "runs/one"
    assert (one / "models/rounds/0/version/model.safetensors").is_file() and (one / "reports/report.html").is_file()
    assert not (one / "data/rounds/0/harvest/episodes.parquet").exists() and (one / "data/rounds/0/harvest/count.json").is_file()
    assert (old / "models/champion/model.safetensors").is_file()
    for place in ("runs/three/models", "runs/three/data", "runs/one/models"):  # the cache still gives back what is live
        shutil.rmtree(old / place)
    dvc(old / "runs/three", "checkout", "-q")
    dvc(one, "checkout", "-q", "models/rounds/0/version")
    assert (old / "runs/three/data/rounds/0/harvest/episodes.parquet").is_file()
    assert cards.weights_of(old, cards.read_card(old / "registry", "000000000001")) is not None
    assert "would free 0.0 MiB" in call(capsys, "gc", "--keep", "1")[1]


def test_what_a_branch_refers_to_and_what_is_young_stays_in_the_cache(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file, listed, dead = ("aa11.dir", "bb22", "cc33", "dd44")
    cache = inside / ".dvc/cache/files/md5"
    for name, text in ((folder, json.dumps([{"md5": listed, "relpath": "x"}])), (file, "b"), (listed, "c"), (dead, "d")):
        (cache / name[:2]).mkdir(parents=True)
        (cache / name[:2] / name[2:]).write_text(text)
    outs = [{"path": "data/a", "md5": folder}, {"path": "data/b", "md5": file}]
    (inside / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": {"prepare": {"cmd": "x", "outs": outs}}}))
    run_git(inside, "checkout", "-q", "-b", "kept")
    run_git(inside, "add", "dvc.lock")
    run_git(inside, "commit", "-q", "-m", "with outs")
    run_git(inside, "checkout", "-q", "-")

    def counted() -> int:
        return json.loads(call(capsys, "gc", "--json")[1])["cache_objects"]

    assert counted() == 0  # all of it is young
    monkeypatch.setattr(retention, "YOUNG_S", -1.0)
    assert counted() == 1
    run_git(inside, "branch", "-D", "kept")
    assert counted() == 4
    monkeypatch.setattr(workspace, "cache_of", lambda root: root.parent / "elsewhere")
    assert "where others may use it" in json.loads(call(capsys, "gc", "--json")[1])["cache_left_alone"]


def test_a_workspace_that_was_just_made_is_about_to_run(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace.create(inside, "new", render_run(inside, None, []))
    value = json.loads(call(capsys, "gc", "--keep", "0", "--json")[1])
    assert value["running"] == ["new"] and value["old"] == []
    assert call(capsys, "gc", "--keep", "-1")[0] == 2


@pytest.mark.parametrize(("pid", "at_work"), [(os.getpid(), True), (2**22 + 1, False)], ids=["here", "gone"])
def test_a_bare_dvc_process_counts_as_a_run(tmp_path: Path, pid: int, at_work: bool) -> None:
    note = tmp_path / ".dvc/tmp/rwlock"
    note.parent.mkdir(parents=True)
    for value in ({"write": {"data": {"pid": pid, "cmd": "dvc repro"}}, "read": {}}, {"read": {"data": [{"pid": pid, "cmd": "dvc repro"}]}}):
        note.write_text(json.dumps(value))
        assert retention.dvc_at_work(tmp_path) is at_work
    note.write_text("{}")
    assert not retention.dvc_at_work(tmp_path)
