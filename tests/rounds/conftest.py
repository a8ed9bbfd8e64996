"""Two rounds with a critic and both kinds of update, in this process, on top of the finished run without them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ratchet.settings import dump_params, render_params
from ratchet.yaml_files import read_yaml
from tests.tasks.conftest import finished as finished, run_stage

BOTH = [
    "fit_critic.enabled=true",
    "evolve_offline.enabled=true",
    "buffer.experts=20",
    "buffer.own={tasks: 6, samples: 2, greedy: 1, temperature: 1.0, shard: 8}",
    "fit_critic.epochs=2",
    "fit_critic.batch_tokens=2000",
    "evolve_offline.step_tokens=2000",
    "evolve_offline.epochs=1",
    "evolve_offline.lr=0.001",
    "evolve_online.iterations=1",
]


def change(folder: Path, *sets: str) -> None:
    (folder / "params.yaml").write_text(dump_params(render_params(read_yaml(folder / "params.yaml"), {}, list(sets))))


STAGES = [
    ("buffer", "1"), ("fit_critic", "1"), ("evolve_offline", "1"), ("evolve_online", "1"), ("buffer", "2"), ("fit_critic", "2"), ("evolve_offline", "2"),
]  # fmt: skip
"""The stages that differ from the run without them; round 2 begins as it did there."""


@pytest.fixture(scope="module")
def evolved(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evolved") / "run"
    shutil.copytree(finished, folder)
    change(folder, *BOTH)
    for name, key in STAGES:
        run_stage(folder, name, key)
    return folder


@pytest.fixture
def evolved_copy(evolved: Path, tmp_path: Path) -> Path:
    shutil.copytree(evolved, tmp_path / "copy")
    return tmp_path / "copy"
