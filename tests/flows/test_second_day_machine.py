"""What a machine can do: doctor looks, plan measures and adds up, play lets a person act."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from flows import doctor, planning
from flows.calibration import ActorSpeed, Speed
from ratchet.models.sizes import memory_of, parameters
from ratchet.rendering import render_run
from ratchet.settings import Settings, parse
from tests.flows.conftest import CHECKOUT
from tests.flows.test_cli import call

ACTOR = ActorSpeed(parameters=1000, write_s=0.001, train_s=0.0001, bytes=4000, token_bytes=10.0, tokens=200.0, reply_tokens=10.0)
SPEED = Speed(
    game_s=0.01, game_bytes=100.0, expert_s=0.1, turns=8.0, turn_bytes=50.0, start_s=1.0, suite_s=2.0,
    has_expert=True,
    actors={"actor": ACTOR, "small": ACTOR},
)


def settings(*sets: str) -> Settings:
    return parse(render_run(CHECKOUT, "smoke", ["env.max_steps=16", "env.max_invalid=null", "harvest.shard=8", *sets]), "", CHECKOUT)


def costs(*sets: str) -> dict[str, planning.Cost]:
    chosen = settings(*sets)
    return dict(planning.estimate(chosen, SPEED, planning.stages(CHECKOUT, chosen)))


def test_every_stage_of_dvc_yaml_has_a_cost() -> None:
    assert set(yaml.safe_load((CHECKOUT / "dvc.yaml").read_text())["stages"]) == set(planning.COSTS)


def test_stages_are_listed_round_by_round_with_the_end_at_the_end() -> None:
    names = list(costs("rounds=2"))
    assert names[:3] == ["prepare", "demonstrate", "warm_start@actor"] and names[-3:] == ["final", "report", "seal"]
    assert names.index("decide@1") < names.index("harvest@2") < names.index("decide@2")


def test_costs_follow_the_settings() -> None:
    one, turns = costs(), 8 + 0.25 * 8
    assert one["demonstrate"].seconds == pytest.approx(1 + 300 * 0.1)
    assert one["warm_start@actor"].seconds == pytest.approx(1 + 60000 * 0.0001)
    assert one["seal"].seconds == 1 and one["check@1"].seconds == 3
    assert one["final"].seconds == pytest.approx(1 + 2 * 32 * turns * 10 * 0.001)
    episodes = 2 * 4 * 4
    tokens = episodes * 200 * turns / 8
    assert one["evolve_online@1"].seconds == pytest.approx(1 + episodes * turns * 10 * 0.001 + tokens * 0.0001)
    assert one["evolve_online@1"].size == pytest.approx(episodes * turns * 10 * 10 + 2 * 4000)
    assert costs("evolve_online.iterations=4")["evolve_online@1"].seconds > one["evolve_online@1"].seconds
    assert costs("evolve_online.kl_weight=0.1")["evolve_online@1"].seconds > one["evolve_online@1"].seconds
    assert costs("warm_start.trainer=trl", "warm_start.observation_weight=0", "warm_start.optimizer=adamw", "warm_start.floor=0")["warm_start@actor"].seconds > 15
    assert sum(cost.seconds for cost in costs("rounds=4").values()) > sum(cost.seconds for cost in one.values())


def test_a_buffer_costs_what_is_played_and_read_for_it() -> None:
    sets, turns = ("rounds=2", "harvest.episodes=100", "harvest.pool=[{policy: actor, share: 0.3}, {policy: random, share: 0.7}]"), 8 + 0.25 * 8
    found = costs(*sets)
    played, read = 32 * turns * 10 * 0.001, (40 * 200 + (32 + 30) * 200 * turns / 8) * 0.0001
    assert found["buffer@1"].seconds == pytest.approx(1 + played + read / 3)
    assert found["fit_critic@1"].seconds == pytest.approx(1 + read * (2 + 1 / 3))
    assert found["evolve_offline@1"].seconds == pytest.approx(1 + read * (1 + 2 / 3))
    assert found["buffer@2"].seconds - found["buffer@1"].seconds == pytest.approx(16 * 200 * turns / 8 * 0.0001 / 3)  # half of the online round failed
    without = costs(*sets, "rounds.1.set.evolve_online.enabled=false")
    assert without["buffer@2"] == without["buffer@1"]  # the round before failed nowhere
    off = costs(*sets, "fit_critic.enabled=false", "evolve_offline.enabled=false")
    assert all(off[f"{name}@1"].seconds == 1 for name in ("buffer", "fit_critic", "evolve_offline"))
    alone = costs(*sets, "evolve_online.enabled=false")
    assert alone["evolve_online@1"] == planning.Cost(1.0) and alone["buffer@2"] == alone["buffer@1"]
    panel = 32 * turns * 10 * 0.001
    assert [round((one["evaluate@1"].seconds - 1) / panel) for one in (found, off, alone)] == [4, 3, 2]  # candidates on select, and confirm


def test_an_episode_that_is_ended_where_it_is_stuck_costs_less() -> None:
    usual, ended = costs(), costs("env.max_invalid=3")
    assert ended["final"].seconds - 1 == pytest.approx((usual["final"].seconds - 1) * (8 + 0.45 * 3) / (8 + 0.25 * 8))
    assert costs("env.max_invalid=12") == usual  # the limit of turns comes first


def test_nobody_speaks_for_a_tokenizer_that_is_not_made() -> None:
    chosen = settings()
    without = chosen.model_copy(update={"prepare": chosen.prepare.model_copy(update={"vocab_size": None})})
    games = (300 + 16 + 3 * 32) * 0.01
    assert planning.COSTS["prepare"](without, SPEED, None).seconds == pytest.approx(games)
    assert planning.COSTS["prepare"](chosen, SPEED, None).seconds > games + 10


@pytest.mark.slow
def test_a_plan_measures_and_says_that_it_is_an_estimate(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(CHECKOUT / "dvc.yaml", inside / "dvc.yaml")
    small = ["evolve_online.shard=4", "harvest.shard=4", "actors.actor.tokens=1000", "env.max_reply_tokens=8"]
    code, out, err = call(capsys, "plan", "--preset", "smoke", "--json", *(part for one in small for part in ("--set", one)))
    assert code == 0, err
    value = json.loads(out)
    assert value["estimate"] and value["seconds"] == pytest.approx(sum(one["seconds"] for one in value["stages"]), abs=2)
    assert all(one["seconds"] > 0 for one in value["stages"]) and value["bytes"] > 0 and value["memory_bytes"] > 2**30


def test_memory_grows_with_what_needs_it() -> None:
    least = memory_of(settings())
    for more in ("evaluate.shard=100000", "env.max_tokens=4000", "actors.actor.width=8192"):
        sets = [more, "warm_start.batch_tokens=4096", "evaluate.shard=1024"] if "max_tokens" in more else [more]
        assert memory_of(settings(*sets)) > least, more


def test_parameters_are_those_of_the_model() -> None:
    from ratchet.models.build import from_scratch

    chosen = settings()
    sizes = chosen.actors["actor"].model_dump(exclude={"tokens"})
    model = from_scratch(**sizes, vocab=500, context=64, seed=1, begin=1, end=2, pad=0)
    assert parameters(chosen.actors["actor"], 500) == sum(one.numel() for one in model.parameters())


def test_doctor_says_one_line_each_and_what_presets_lack(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    (inside / "presets" / "mine.yaml").write_text("line: mine\nenv: {options: {games: data}}\n")
    (inside / "presets" / "wrong.yaml").write_text("sed: 1\n")
    (inside / "presets" / "large.yaml").write_text("line: large\nactors: {actor: {layers: 96, width: 12288, heads: 96, kv_heads: 96, mlp: 49152, tokens: 1}}\nharvest: {pool: [{policy: actor, share: 1}]}\n")
    code, out, err = call(capsys, "doctor", "--json")
    assert code == 0, err
    found = {one["name"]: one for one in json.loads(out)}
    assert {"python", "threads", "memory", "disk", "git", "g++", "java", "chromium", "project", "preset smoke"} <= set(found)
    assert found["preset mine"]["state"] == "warn" and "needs ALFWORLD_DATA" in found["preset mine"]["way_out"]
    assert "sed: unknown key" in found["preset wrong"]["text"]
    assert found["preset large"]["state"] == "warn" and "GiB of memory, of which" in found["preset large"]["text"]
    lines = call(capsys, "doctor")[1].splitlines()
    assert len(lines) == len(found) and all(line.split()[0] in ("ok", "warn", "fail") for line in lines)


def test_doctor_fails_where_something_is_missing_that_everything_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_constraint_lines", lambda: ["torch==0.1", "not-installed-anywhere>=1"])
    code, out, err = call(capsys, "doctor")
    assert code == 1 and "not well: git" in err
    assert "none of the versions known to work together (==0.1)" in out and "not-installed-anywhere" not in out
    assert "`ratchet init my-project` begins one" in out


def play(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return call(capsys, "play", *arguments)


def test_a_person_plays_without_a_terminal(inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = play(capsys, monkeypatch, "?go to\nfly \x1b[2Jaway\nlook\n.\nlook\n", "alfworld/look", "--seed", "3")
    assert code == 0, err
    assert "(look_at_obj_in_light)" in out and "again with --seed 3" in out and "Your task is to:" in out
    assert "  go to " in out and "  examine" not in out.split("> fly")[0]
    assert "(not admissible)" in out and "\\x1b[2J" in out and "\x1b" not in out
    assert out.rstrip().endswith("not solved after 2 steps, score 0")
    assert play(capsys, monkeypatch, "", "alfworld/look", "--seed", "3")[1].splitlines()[0] == out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["alfwrld"], "did you mean 'alfworld'?"), (["alfworld/nonsense"], "no task of train matches"), (["--split", "x"], "no such split")],
)
def test_what_cannot_be_played_is_refused(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    code, _, err = play(capsys, monkeypatch, "", *arguments)
    assert code == 2 and said in err
