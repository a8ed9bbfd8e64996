"""The environment that docs/environments.md writes: short, refused where it cannot work, and played by all that Ratchet has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.envs.benchmarks import benchmark
from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.rendering import read_preset, render_run
from ratchet.settings import dump_params, parse
from tests.envs.conformance import CHECKOUT
from tests.envs.tutorial import NAME, PAGE, code, write_module
from tests.tasks.conftest import run_stage

SMALL = [
    "prepare.games={train: 160, seen: 8, select: 8, confirm: 8, test: 8}",
    "demonstrate.episodes=160",
    "actors={actor: {layers: 1, width: 32, heads: 2, kv_heads: 1, mlp: 64, tokens: 30000}}",
    "harvest.episodes=16",
    "harvest.pool=[{policy: expert, share: 0.25}, {policy: actor, share: 0.5}, {policy: random, share: 0.25}]",
    "label.replay_share=1.0",
]


def project(folder: Path, *sets: str) -> Path:
    """A folder as the page describes it: the module and the preset as they stand there, and what a project has."""
    folder.mkdir(exist_ok=True)
    write_module(folder)
    (folder / "presets").mkdir()
    preset = re.search(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert preset is not None
    (folder / "presets" / "parcel.yaml").write_text(preset[1], encoding="utf-8")
    for name in ("params.yaml", "dvc.yaml", "waivers.yaml"):
        (folder / name).write_bytes((CHECKOUT / name).read_bytes())
    (folder / "params.yaml").write_text(dump_params(render_run(folder, "parcel", list(sets))))
    return folder


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stages up to the labels of the first round, in this process; the last of them are played by a language model too."""
    folder = project(tmp_path_factory.mktemp("project"), *SMALL)
    for name, key in (("prepare", None), ("demonstrate", None), ("warm_start", "actor"), ("evaluate", "0"), ("baseline", None)):
        run_stage(folder, name, key)
    for name in ("harvest", "label"):
        run_stage(folder, name, "1")
    return folder


def test_the_page_keeps_what_it_promises() -> None:
    assert len([line for line in code().splitlines() if line.strip()]) <= 50
    assert read_preset(CHECKOUT / "presets", "quickstart") == {}


def test_the_preset_of_the_page_is_valid_as_it_stands(tmp_path: Path) -> None:
    settings = parse(render_run(project(tmp_path / "mine"), "parcel", []), "", tmp_path / "mine")
    assert settings.env.name == NAME and settings.env.options.rooms == 5 and settings.env.code is not None
    with pytest.raises(RatchetError, match="env.options.rooms: 9 is refused"):
        render_run(tmp_path / "mine", "parcel", ["env.options.rooms=9"])
    with pytest.raises(RatchetError, match="there are 336 rings of 3 rooms"):
        small = parse(render_run(tmp_path / "mine", "parcel", ["env.options.rooms=3"]))
        benchmark(NAME).prepare(tmp_path, small.env, small.prepare.games.model_dump(), 1)


def test_expert_random_policy_and_language_model_play_it(played: Path) -> None:
    assert read_json(played / "reports/metrics/demonstrate.json")["success"] == 1.0
    episodes = read_table(played / "data/rounds/1/harvest/episodes.parquet", "episodes")
    steps = read_table(played / "data/rounds/1/harvest/steps.parquet", "steps")
    assert set(episodes["env"].to_pylist()) == {"parcel"} and set(episodes["error"].to_pylist()) == {None}
    by_policy = read_json(played / "reports/metrics/harvest-1.json")["by_policy"]
    assert by_policy["expert"]["success"] == 1.0 and by_policy["expert"]["invalid_share"] == 0.0
    assert by_policy["random"]["episodes"] == 4 and by_policy["actor"]["episodes"] == 8
    assert "generated" in set(steps["tokens_from"].to_pylist())


def test_what_was_played_is_the_same_when_it_is_replayed(played: Path) -> None:
    replayed = read_json(played / "data/rounds/1/labels/replay.json")
    assert replayed["replayed"] == 16 and replayed["mismatched"] == 0


def test_a_stage_in_a_process_of_its_own_and_its_workers_find_the_module_of_the_workspace(tmp_path: Path) -> None:
    folder = project(tmp_path / "mine", *SMALL, "prepare.games.train=160", "env.workers=2")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    def prepare() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tasks.prepare"]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)

    done = prepare()
    assert done.returncode == 0, done.stderr
    assert read_json(folder / "data/panels/test.json")["tasks"][0]["env"] == "parcel"
    with (folder / "parcel.py").open("a") as file:
        file.write("# changed\n")
    done = prepare()
    assert done.returncode == 2 and "env.code" in done.stderr and "ratchet render" in done.stderr and len(done.stderr.splitlines()) == 1
