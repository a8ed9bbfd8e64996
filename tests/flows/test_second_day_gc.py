"""Retention: old runs give what nothing needs, and whatever is live stays, in the cache too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import retention, workspace
from flows.record import RunRecord
from ratchet.rendering import render_run
from ratchet.store import cards, champions
from tests.flows.conftest import make_checkout
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
def test_old_runs_go_and_what_is_decided_or_kept_stays_whole_in_dvcs_eyes(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, files = objects(old), sorted(old.rglob("*"))
    dry = json.loads(call(capsys, "gc", "--keep", "1", "--json")[1])
    assert [(one["run"], one["removed"], one["versions_kept"]) for one in dry["old"]] == [
        ("one", False, ["000000000001"]),
        ("two", True, []),
        ("three", True, []),
    ]
    assert dry["kept"] == ["four"] and dry["running"] == [] and not dry["applied"] and dry["freed_bytes"] > 0
    assert objects(old) == before and [path for path in files if not path.exists()] == []

    code, out, err = call(capsys, "gc", "--keep", "1", "--apply")
    assert code == 0, err
    assert f"freed {dry['freed_bytes'] / 2**20:.1f} MiB" in out
    assert sorted(path.name for path in (old / "runs").iterdir()) == ["four", "one"]
    assert before - objects(old) == dry["cache_objects"] > 0
    one = old / "runs/one"
    assert (one / "models/rounds/0/version/model.safetensors").is_file() and (one / "reports/report.html").is_file()
    assert not (one / "data/rounds/0/harvest/episodes.parquet").exists() and (one / "data/rounds/0/harvest/count.json").is_file()
    for place in ("runs/four/models", "runs/four/data", "runs/one/models"):  # the cache still gives back what is live
        subprocess.run(["rm", "-r", place], cwd=old, check=True)
    dvc(old / "runs/four", "checkout", "-q")
    dvc(old / "runs/one", "checkout", "-q", "models/rounds/0/version")
    assert (old / "runs/four/data/rounds/0/harvest/episodes.parquet").is_file()
    assert cards.weights_of(old, cards.read_card(old / "registry", "000000000001")) is not None
    assert "would free 0.0 MiB" in call(capsys, "gc", "--keep", "1")[1]


@pytest.mark.slow
def test_while_a_run_is_on_nothing_of_it_nor_of_the_cache_goes(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = objects(old)
    champions.set_champion(old, "quickstart", "000000000002")
    with workspace.running(old / "runs/three"):
        (old / "runs/three/models/rounds/0/version/model.safetensors").unlink()  # a stage is about to write it anew
        value = json.loads(call(capsys, "gc", "--keep", "0", "--apply", "--json")[1])
    assert value["running"] == ["three"] and "a run is on" in value["cache_left_alone"] and value["cache_objects"] == 0
    assert sorted(path.name for path in (old / "runs").iterdir()) == ["one", "three", "two"]  # decided, running, champion
    assert (old / "runs/three/data/rounds/0/harvest/episodes.parquet").is_file()
    assert (old / "models/champion/model.safetensors").is_file()
    assert objects(old) == before
    dvc(old / "runs/three", "checkout", "-q")
    with workspace.running(old):  # a run in the checkout itself
        assert "a run is on" in call(capsys, "gc", "--keep", "0")[1]


@pytest.mark.slow
def test_what_a_branch_refers_to_and_what_is_young_stays_in_the_cache(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.flows.conftest import run_git

    (old / "dvc.lock").write_bytes((old / "runs/two/dvc.lock").read_bytes())
    run_git(old, "checkout", "-q", "-b", "kept")
    run_git(old, "add", "dvc.lock")
    run_git(old, "commit", "-q", "-m", "two")
    run_git(old, "checkout", "-q", "-")
    branch = json.loads(call(capsys, "gc", "--keep", "1", "--json")[1])["cache_objects"]
    run_git(old, "branch", "-D", "kept")
    assert branch < json.loads(call(capsys, "gc", "--keep", "1", "--json")[1])["cache_objects"]
    monkeypatch.setattr(retention, "YOUNG_S", 3600.0)
    assert json.loads(call(capsys, "gc", "--keep", "1", "--json")[1])["cache_objects"] == 0


def test_a_workspace_that_was_just_made_is_about_to_run(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace.create(inside, "new", render_run(inside, None, []))
    value = json.loads(call(capsys, "gc", "--keep", "0", "--json")[1])
    assert value["running"] == ["new"] and value["old"] == []
    assert call(capsys, "gc", "--keep", "-1")[0] == 2


@pytest.mark.parametrize(("pid", "at_work"), [(os.getpid(), True), (2**22 + 1, False)])
def test_a_bare_dvc_process_counts_as_a_run(tmp_path: Path, pid: int, at_work: bool) -> None:
    note = tmp_path / ".dvc/tmp/rwlock"
    note.parent.mkdir(parents=True)
    for value in ({"write": {"data": {"pid": pid, "cmd": "dvc repro"}}, "read": {}}, {"read": {"data": [{"pid": pid, "cmd": "dvc repro"}]}}):
        note.write_text(json.dumps(value))
        assert retention.dvc_at_work(tmp_path) is at_work
    note.write_text("{}")
    assert not retention.dvc_at_work(tmp_path)
