"""One small run of the whole pipeline, in this process, shared by the tests of the stages."""

from __future__ import annotations

import importlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock

from ratchet.settings import dump_params, load, render_params
from tasks.common import Stage, perform

CHECKOUT = Path(__file__).parents[2]
THREADS = 1  # sums differ in their last bits with the number of threads, and other tests change it
ROUND = ("harvest", "label", "check", "buffer", "fit_meter", "fit_critic", "evolve_offline", "evolve_online", "evaluate", "drift", "decide")
TINY = [
    "env.max_steps=8",
    "env.max_tokens=320",
    "prepare.games={train: 120, seen: 12, select: 16, confirm: 24, test: 24}",
    "demonstrate.episodes=120",
    "actors={actor: {layers: 1, width: 32, heads: 2, kv_heads: 1, mlp: 64, tokens: 20000}, "
    "small: {layers: 1, width: 16, heads: 2, kv_heads: 1, mlp: 32, tokens: 5000}}",
    "harvest.episodes=20",
    "fit_critic.enabled=false",  # tests/rounds has it
    "evolve_offline.enabled=false",
    "evolve_online.iterations=2",
    "evolve_online.tasks=3",
    "evolve_online.samples=3",
    "evolve_online.keep_every=1",
]


def order(folder: Path) -> list[tuple[str, str | None]]:
    settings = load(folder / "params.yaml")
    stages: list[tuple[str, str | None]] = [("prepare", None), ("demonstrate", None)]
    stages += [("warm_start", actor) for actor in settings.actors] + [("evaluate", "0"), ("baseline", None)]
    stages += [(name, key) for key in settings.rounds for name in ROUND]
    return [*stages, ("final", None), ("report", None), ("seal", None)]


def lay(folder: Path, *sets: str) -> Path:
    """A workspace without DVC: params.yaml, dvc.yaml, waivers.yaml; the code is the installed one."""
    folder.mkdir(parents=True, exist_ok=True)
    base, smoke = (yaml.safe_load((CHECKOUT / name).read_text()) for name in ("params.yaml", "presets/smoke.yaml"))
    (folder / "params.yaml").write_text(dump_params(render_params(base, smoke, [*TINY, *sets])))
    for name in ("dvc.yaml", "waivers.yaml"):
        shutil.copy(CHECKOUT / name, folder / name)
    return folder


def run_stage(folder: Path, name: str, key: str | None = None) -> None:
    """Runs a stage and, as DVC does when it has recorded one, writes dvc.lock."""
    torch.set_num_threads(THREADS)
    perform(Stage(folder, load(folder / "params.yaml"), name, key), importlib.import_module(f"tasks.{name}").run)
    lock, title = folder / "dvc.lock", name if key is None else f"{name}@{key}"
    recorded = yaml.safe_load(lock.read_text())["stages"] if lock.is_file() else {}
    lock.write_text(yaml.safe_dump({"stages": {**recorded, title: {}}}))
    now = time.time_ns()
    os.utime(lock, ns=(now, now))


def run_all(folder: Path, before: Callable[[str, str | None], None] = lambda name, key: None) -> Path:
    for name, key in order(folder):
        before(name, key)
        run_stage(folder, name, key)
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests read it and change copies. The processes of one test run share it: whoever needs it first makes it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(shared / "finished.lock"):
        folder, whole = shared / "finished", shared / "finished.whole"
        if not whole.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            run_all(lay(folder))
            whole.touch()
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"
