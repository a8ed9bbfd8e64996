"""A checkout in small: the real params.yaml, a dvc.yaml of trivial stages, a git repository, and one Prefect API for all tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.quiet import prepare_prefect

prepare_prefect()

CHECKOUT = Path(__file__).parents[2]
PREPARE = """
stages:
  prepare:
    cmd: python stage.py prepare data/prepare
    deps: [stage.py]
    params: [seed]
    outs: [data/prepare]
"""  # how every pipeline of these tests begins
DVC_YAML = PREPARE + """\
  evaluate:
    foreach: ${evaluations}
    do:
      cmd: python stage.py evaluate-${key} data/rounds/${key}/evaluation
      deps: [stage.py, data/prepare]
      outs: ["data/rounds/${key}/evaluation"]
  decide:
    foreach: ${rounds}
    do:
      cmd: python stage.py decide-${key} data/rounds/${key}/decision
      deps: [stage.py, "data/rounds/${key}/evaluation", "data/rounds/${item.prev}/evaluation"]
      outs: ["data/rounds/${key}/decision"]
  report:
    cmd: python stage.py report reports/report.html
    deps: [stage.py, data/rounds]
    outs: [reports/report.html]
  seal:
    cmd: python stage.py seal reports/seal.json
    deps: [stage.py, reports/report.html, waivers.yaml]
    outs: [reports/seal.json]
"""
STAGE_PY = """
import json, os, subprocess, sys, time
name, out = sys.argv[1:]
stage, _, key = name.partition("-")
assert not os.path.exists(f"logs/throughput/{stage}@{key}.json"), "how fast an earlier attempt was"
with open(".calls", "a") as log:
    log.write(name + "\\n")
print(name, "says hello")
if os.path.exists("break-" + stage):
    sys.exit("error: " + open("break-" + stage).read())
if os.path.exists("hang-" + stage):
    worker = subprocess.Popen(["sleep", "300"])
    open("hanging", "w").write(f"{os.getpid()} {worker.pid}")
    time.sleep(300)
interval = {"mean": 0.5, "low": 0.4, "high": 0.6}
summary = {"panel": "select", "n": 8, "success": interval, "steps": 3.0, "invalid_share": 0.0}
values = {
    "evaluate": {"skipped": None, "candidates": [{"name": "iter-001", "version": "abc", "select": summary}],
                 "selected": "iter-001", "version": "abc", "confirm": {**summary, "panel": "confirm"}},
    "decide": {"round": key, "event": "model.kept", "champion": {"version": "abc", "round": "0"}, "reasons": ["no gain"],
               "comparison": {"gain": {"mean": 0.0, "low": -0.1, "high": 0.1}}, "stop": None},
}
where = out if "." in out else f"{out}/{ {'evaluate': 'evaluation', 'decide': 'decision'}.get(stage, 'value') }.json"
os.makedirs(os.path.dirname(where), exist_ok=True)
json.dump(values.get(stage, {}), open(where, "w"))
if stage == "evaluate":
    os.makedirs("logs/throughput", exist_ok=True)
    said = dict.fromkeys(("line", "params_hash", "machine", "threads"))
    json.dump({**said, "stage": f"evaluate@{key}", "state": "done", "measured_at": str(time.time()), "wall_s": 2.0, "counts": {},
               "seconds": {"decoding": 1.0, "other": 1.0}, "peak_memory_mb": 5.0}, open(f"logs/throughput/evaluate@{key}.json", "w"))
if stage == "seal" and "bad" in open("waivers.yaml").read():
    sys.exit("seal: not sealed, failed checks: invalid_share; look at reports/report.html")
"""


def run_git(folder: Path, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    identity = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


def make_checkout(folder: Path, stages: str = DVC_YAML) -> Path:
    """A committed checkout in `folder`, with `stages` as its dvc.yaml."""
    folder.mkdir(parents=True)
    for name in ("params.yaml", ".dvcignore", ".gitignore", "waivers.yaml"):
        shutil.copy(CHECKOUT / name, folder / name)
    with (folder / ".gitignore").open("a") as file:
        file.write("/.calls\n/hanging\n")
    shutil.copytree(CHECKOUT / "presets", folder / "presets")
    (folder / ".dvc").mkdir()
    for name in ("config", ".gitignore"):
        shutil.copy(CHECKOUT / ".dvc" / name, folder / ".dvc" / name)
    (folder / "dvc.yaml").write_text(stages)
    (folder / "stage.py").write_text(STAGE_PY)
    run_git(folder, "init", "--quiet")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", "start")
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "checkout")


@pytest.fixture
def inside(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(checkout)
    return checkout


@pytest.fixture(scope="session")
def prefect_api() -> Iterator[dict[str, str]]:
    """One temporary Prefect API for the session; yields the environment that lets other processes use it, or its database."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        settings = get_current_settings()
        database = settings.server.database.connection_url
        assert settings.api.url and database
        yield {"PREFECT_API_URL": str(settings.api.url), "PREFECT_SERVER_DATABASE_CONNECTION_URL": database.get_secret_value()}


class FakeSync(types.ModuleType):
    """Stands for ratchet.store.sync, which knows only real outs: remembers for which runs it was called."""

    def __init__(self) -> None:
        super().__init__("fake")
        self.synced: list[str] = []

    def sync(self, root: Path, folder: Path, run_id: str) -> None:
        self.synced.append(run_id)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeSync:
    import ratchet.store

    fake = FakeSync()
    monkeypatch.setitem(sys.modules, "ratchet.store.sync", fake)
    monkeypatch.setattr(ratchet.store, "sync", fake, raising=False)
    return fake
