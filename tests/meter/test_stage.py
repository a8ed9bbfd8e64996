"""The stage: a meter that passes is passed on, one that fails is fitted on the newest pool, and left out if that fails too."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from ratchet.envs.proving_ground.generate import tasks_of, version_of
from ratchet.episodes.files import read_table, table_of, write_table
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.meter.meter import Meter
from ratchet.models.build import save_model
from ratchet.settings import load
from tasks.common import Stage, perform
from tests.meter.fabricate import recorded
from tests.models import tiny
from tests.tasks.conftest import lay

SETS = [
    "env.name=proving-ground", "evolve_online.meter.enabled=true", "rounds=2",
    "fit_meter.sft={trainer: learner, epochs: 25, lr: 0.003, batch: 16, examples: null}", "fit_meter.rl.steps=0",
]  # fmt: skip
TASKS = tasks_of("train", 40, seed=1, orders=4, idle_share=0.0, kinds=["plain"], version=version_of(5, 4, 2))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = lay(tmp_path_factory.mktemp("stage") / "ws", *SETS)
    base = tiny.model(len(tiny.template().tokenizer))
    save_model(base, tiny.tokenizer_folder(), folder / "models" / "warm" / "actor", {"stage": "test", "action_format": "plain"})
    write_json(folder / "models" / "rounds" / "0" / "meter" / "skipped.json", {"skipped": "no round was played yet"})
    for key in ("0", "1"):
        write_json(folder / "data" / "rounds" / key / "decision" / "decision.json", {"round": int(key), "stop": None})
    harvest(folder, "1")
    return folder


def harvest(folder: Path, key: str, reversed_outcomes: bool = False, all_of_one: bool = False) -> None:
    rows, steps = recorded(32)
    for number, row in enumerate(rows):
        row |= {"task_id": TASKS[number].task_id, "env": "proving-ground", "solved": all_of_one or row["solved"] != reversed_outcomes}
    write_table(folder / "data" / "rounds" / key / "harvest" / "episodes.parquet", "episodes", table_of("episodes", rows))
    write_table(folder / "data" / "rounds" / key / "harvest" / "steps.parquet", "steps", steps)
    write_json(folder / "data" / "rounds" / key / "check" / "verdict.json", {"checks": []})


def fitted(folder: Path, key: str) -> dict[str, Any]:
    perform(Stage(folder, load(folder / "params.yaml"), "fit_meter", key), importlib.import_module("tasks.fit_meter").run)
    return read_json(folder / "data" / "rounds" / key / "meter" / "gate.json")


def test_a_meter_lives_as_long_as_its_gate_is_open(begun: Path, tmp_path: Path) -> None:
    first = fitted(begun, "1")
    assert first["action"] == "fitted" and first["gate"]["passed"] and first["event"] is None and first["gate"]["accuracy"] > 0.9
    folder = begun / "models" / "rounds" / "1" / "meter"
    meter = Meter.load(folder)
    assert meter.card["env"] == "proving-ground" and meter.limit == first["limit"] > 0 and read_json(folder / "ratchet.json")["kind"] == "meter"
    scores = read_table(begun / "data" / "rounds" / "1" / "meter" / "scores.parquet", "meter")
    assert scores.num_rows == first["pool"]["calibration"]["prefixes"] and set(scores["weight"].to_pylist()) == {None}
    assert {one["n"] for one in read_json(begun / "data" / "rounds" / "1" / "meter" / "calibration.json")["reliability"]}

    same = shutil.copytree(begun, tmp_path / "same")
    harvest(same, "2")
    second = fitted(same, "2")
    assert second["action"] == "passed on" and second["version"] == first["version"]
    assert (same / "models/rounds/2/meter/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()

    harvest(begun, "2", reversed_outcomes=True)
    again = fitted(begun, "2")
    assert again["action"] == "fitted again" and "accuracy above the majority class" in again["before"]["failed"]
    assert again["gate"]["passed"] and again["version"] != first["version"]


def test_one_that_fails_again_is_left_out_and_told(begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(begun, tmp_path / "off")
    lay(folder, *SETS, "fit_meter.sft.epochs=0")
    record = fitted(folder, "1")
    assert record["action"] == "off" and record["event"] == "drift.detected" and record["version"] is None
    assert "the meter is off: it fails its gate" in read_json(folder / "models/rounds/1/meter/skipped.json")["skipped"]
    assert "off; it fails its gate" in capsys.readouterr().out
    lay(folder, *SETS, "fit_meter.sft.epochs=0", "fit_meter.gate.enforce=false")
    assert fitted(folder, "1")["action"] == "fitted"


def test_what_cannot_be_learned_or_used_is_refused(begun: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(begun, tmp_path / "refused")
    harvest(folder, "1", all_of_one=True)
    with pytest.raises(RatchetError, match=r"no failure \(32 of 32 episodes solved\)"):
        fitted(folder, "1")
    given = tmp_path / "given"
    write_json(given / "meter.json", {"env": "scienceworld"})
    lay(folder, *SETS, f"evolve_online.meter.given={given}")
    with pytest.raises(RatchetError, match="fitted on scienceworld"):
        fitted(folder, "1")
    lay(folder, *SETS, "evolve_online.meter.enabled=false")
    perform(Stage(folder, load(folder / "params.yaml"), "fit_meter", "1"), importlib.import_module("tasks.fit_meter").run)
    assert read_json(folder / "data/rounds/1/meter/skipped.json")["skipped"] == "evolve_online.meter is off"


def test_the_verbose_policy_says_more_and_does_the_same(begun: Path, tmp_path: Path) -> None:
    from ratchet.envs.benchmarks import benchmark
    from ratchet.envs.proving_ground.env import ProvingGroundEnv
    from tasks.rollouts import expert_policy, verbose_policy

    settings = load(begun / "params.yaml")
    benchmark("proving-ground").prepare(tmp_path, settings.env, dict.fromkeys(("train",), 1), 1)
    said: dict[str, list[str]] = {}
    for policy in (expert_policy(settings, tmp_path), verbose_policy(settings, tmp_path)):
        env = ProvingGroundEnv()
        turn = env.reset(TASKS[0])
        policy.begin(0, TASKS[0], turn, "e", 1)
        texts = said.setdefault(policy.policy_id, [])
        while not turn.done:
            [reply] = policy.act([0], [turn])
            assert reply is not None
            texts.append(reply.text)
            turn = env.step(reply.action)
        assert turn.solved
    assert len(said["verbose"]) == len(said["expert"]) and sum(map(len, said["verbose"])) > 1.5 * sum(map(len, said["expert"]))
