"""ScienceWorld behind the environment interface: exact worlds side by side, the official split, killed and stopped JVMs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import EnvPool, Failure
from ratchet.envs.scienceworld.benchmark import Scienceworld, chosen_tasks, split_tasks
from ratchet.envs.scienceworld.engine import Engine, simplifications_for
from ratchet.envs.scienceworld.env import ScienceworldEnv, make, understood, version_of
from ratchet.errors import RatchetError
from tests.envs.processes import gone, group, stop

pytest.importorskip("scienceworld", reason="the extra scienceworld is not installed")

FACTORY = "ratchet.envs.scienceworld.env:make"
GROWING = [("open door to greenhouse", "go to greenhouse", "wait", "look around", "fly", "wait", "look around", "look around"), ("wait",) * 5]


def task(name: str, variation: int, simplifications: tuple[str, ...] = ("easy",)) -> Task:
    task_id = f"{name}/{variation}"
    return Task("scienceworld", version_of(simplifications), task_id, "train", name, task_id)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    one = Engine(256)
    yield one
    one.shutdown()


def played(env: ScienceworldEnv, one: Task, actions: tuple[str, ...]) -> list[Turn]:
    return [env.reset(one), *(env.step(action) for action in actions)]


def texts(turns: list[Turn]) -> list[tuple[str, float, bool]]:
    return [(turn.observation, turn.score, turn.done) for turn in turns]


# ---- the world, and several of them in one JVM ---------------------------------------------------------------------------


def test_an_episode_reads_scores_and_ends_as_the_engine_says(engine: Engine) -> None:
    env = ScienceworldEnv(engine)
    turns = played(env, task("lifespan-longest-lived", 5), ("go to hallway", "go to greenhouse", "go to outside", "focus on crocodile"))
    assert turns[0].observation.startswith("Your task is to find the animal with the longest life span.")
    assert "This room is called the workshop." in turns[0].observation
    assert [turn.score for turn in turns] == [0.0, 0.0, 0.25, 0.5, 1.0]
    assert [turn.reward for turn in turns] == [0.0, 0.0, 0.25, 0.25, 0.5]
    assert (turns[-1].solved, turns[-1].done, turns[-1].valid) == (True, True, True)
    after = env.step("look around")
    assert (after.observation, after.reward, after.score, after.done, after.valid) == (turns[-1].observation, 0.0, 1.0, True, False)


def test_a_negative_score_is_a_failure(engine: Engine) -> None:
    env = ScienceworldEnv(engine)
    turns = played(env, task("lifespan-longest-lived", 5), ("go to hallway", "go to greenhouse", "go to outside", "focus on axe"))
    assert turns[-2].score == 0.5
    assert (turns[-1].score, turns[-1].reward, turns[-1].solved, turns[-1].done) == (0.0, -0.5, False, True)


def test_what_the_engine_does_not_take_is_invalid_and_a_question_is_not(engine: Engine) -> None:
    env = ScienceworldEnv(engine)
    turns = played(env, task("find-non-living-thing", 7), ("fly to the moon", "open door", "5", "open door"))
    assert [turn.valid for turn in turns] == [True, False, True, True, True]
    assert turns[2].observation.startswith("Ambiguous request") and turns[1].observation != turns[2].observation
    assert turns[4].admissible[0] == "0", "a number answers"
    cancelled = env.step("look around")
    assert not cancelled.valid and cancelled.observation.startswith("Unknown action."), "anything else takes the question back"
    assert env.step("look around").valid


@pytest.mark.parametrize(
    ("said", "valid"),
    [
        ("No known action matches that input.", False),
        ("Unknown action.  Type 'help' for a list of actions", False),
        ("It's not clear how to open that.", False),
        ("Ambiguous request: Please enter the number", True),
        ("The door is already open.", True),
        ("", True),
    ],
)
def test_validity_is_read_from_what_was_said(said: str, valid: bool) -> None:
    assert understood(said) == valid


def test_worlds_played_in_turns_are_those_of_the_bare_engine(engine: Engine) -> None:
    """Plants and wandering animals draw from random numbers that the engine has once for the whole JVM."""
    tasks = [task("grow-plant", 7), task("find-plant", 1), task("find-animal", 3, ()), task("power-component", 2)]
    actions = [GROWING[n % 2] * 2 for n in range(len(tasks))]
    expected = []
    for one, mine in zip(tasks, actions, strict=True):
        bare = engine.world()
        name, _, variation = one.task_id.partition("/")
        bare.load(name, int(variation), one.env_version.partition("+")[2])
        expected.append([bare.step(action)[0].strip() for action in mine])
    environments = [ScienceworldEnv(engine, () if "+" not in one.env_version else ("easy",)) for one in tasks]
    for env, one in zip(reversed(environments), reversed(tasks), strict=True):
        env.reset(one)
    found: list[list[str]] = [[] for _ in tasks]
    for t in range(max(map(len, actions))):
        for n in range(len(tasks))[:: 1 if t % 2 else -1]:
            if t < len(actions[n]):
                found[n].append(environments[n].step(actions[n][t]).observation)
    assert found == expected


def test_listing_the_valid_actions_changes_nothing(engine: Engine) -> None:
    env, one = ScienceworldEnv(engine), task("grow-plant", 7)
    unasked = texts(played(env, one, GROWING[0]))
    turn, asked = env.reset(one), []
    lists = []
    for action in (*GROWING[0], None):
        asked.append(turn)
        lists.append(tuple(turn.admissible))
        assert lists[-1] == env.valid_actions(), "the same list again"
        if action is not None:
            turn = env.step(action)
    assert texts(asked) == unasked
    assert len(lists[0]) > 10 and "look around" in lists[0]


def test_valid_actions_are_computed_only_when_asked_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    env = ScienceworldEnv(engine)
    monkeypatch.setattr(env, "valid_actions", lambda: pytest.fail("nobody asked"))
    turn = env.reset(task("find-animal", 3))
    env.step("look around")
    with pytest.raises(RatchetError, match="earlier turn"):
        len(turn.admissible)


# ---- tasks ---------------------------------------------------------------------------------------------------------------


def test_the_split_is_the_official_one(engine: Engine) -> None:
    official = {name: engine.variations(name) for name in engine.tasks}
    assert len(official) == 30 and sum(len(part) for parts in official.values() for part in parts.values()) == 7207
    assert engine.variations("identify-life-stages-2") == {"train": [0, 1, 2, 3], "dev": [4, 5], "test": [6, 7, 8, 9]}
    options = Scienceworld.Options(tasks=["find-*", "lifespan-*"])
    tasks = split_tasks(engine, options, {"train": 200, "seen": 20, "select": 190, "confirm": 190, "test": 396})
    parts = {"train": "train", "seen": "train", "select": "dev", "confirm": "dev", "test": "test"}
    for split, chosen in tasks.items():
        for one in chosen:
            name, _, variation = one.task_id.partition("/")
            assert int(variation) in official[name][parts[split]]
            assert (one.stratum, one.split, one.env_version) == (name, split, version_of(["easy"]))
    ids = [one.task_id for chosen in tasks.values() for one in chosen]
    assert len(set(ids)) == len(ids), "no variation is in two splits"
    assert len({one.stratum for one in tasks["select"][:7]}) == 7, "any first part is balanced"
    assert len({one.cluster for one in tasks["confirm"]}) == 190


def test_more_tasks_than_there_are_are_refused(engine: Engine) -> None:
    options = Scienceworld.Options(tasks=["lifespan-*"])
    with pytest.raises(RatchetError, match=r"prepare\.games\.test: 97 is above the 96"):
        split_tasks(engine, options, {"test": 97})
    with pytest.raises(RatchetError, match="4 would be in both"):
        split_tasks(engine, options, {"train": 180, "seen": 10})


def test_options_that_cannot_work_are_refused() -> None:
    names = ("boil", "power-component", "find-animal")
    assert chosen_tasks(names, Scienceworld.Options(tasks=["*component", "b*"])) == ["boil", "power-component"]
    with pytest.raises(RatchetError, match="'fnid-\\*' fits no task of ScienceWorld; they are boil, "):
        chosen_tasks(names, Scienceworld.Options(tasks=["fnid-*"]))
    with pytest.raises(RatchetError, match="noElectricalAction leaves power-component unsolvable"):
        chosen_tasks(names, Scienceworld.Options(simplifications=["noElectricalAction"]))
    with pytest.raises(ValueError, match="easy stands alone"):
        Scienceworld.Options(simplifications=["easy", "openDoors"])
    assert simplifications_for("power-component", "easy").split(",") == ["teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors"]
    assert simplifications_for("boil", "easy") == "easy"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Task("alfworld", "1", "find-animal/1", "train", "", ""), "is of alfworld 1, not of scienceworld"),
        (Task("scienceworld", "0.9+easy", "find-animal/1", "train", "", ""), r"is of scienceworld 0\.9\+easy"),
        (Task("scienceworld", "1.2.3", "find-animal/1", "train", "", ""), r"is of scienceworld 1\.2\.3, not of scienceworld 1\.2\.3\+easy"),
        (Task("scienceworld", "", "find-animal", "train", "", ""), "TASK/VARIATION"),
        (Task("scienceworld", "", "find-dragon/1", "train", "", ""), "does not take find-dragon/1"),
        (Task("scienceworld", "", "find-animal/900", "train", "", ""), "does not take find-animal/900"),
    ],
)
def test_a_task_that_is_not_there_is_named(engine: Engine, wrong: Task, message: str) -> None:
    version = wrong.env_version or version_of(["easy"])
    with pytest.raises(RatchetError, match=message):
        ScienceworldEnv(engine).reset(Task(wrong.env, version, wrong.task_id, "train", "", ""))


def test_a_step_before_a_reset_is_refused(engine: Engine) -> None:
    with pytest.raises(RatchetError, match="before reset"):
        ScienceworldEnv(engine).step("look around")


def test_a_missing_package_says_how_to_get_it() -> None:
    """One line, from the command that a stage is."""
    code = (
        "import ratchet.envs.scienceworld.engine as engine\n"
        "engine.find_spec = lambda name: None\n"
        "from ratchet.errors import RatchetError\n"
        "try: engine.Engine(128)\n"
        "except RatchetError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ScienceWorld is not installed; `pip install 'ratchet-agents[scienceworld]'` brings it and a Java runtime"


# ---- processes -----------------------------------------------------------------------------------------------------------


def java_of(worker: int) -> int:
    """The JVM that a worker has started."""
    return next(pid for pid in group(worker) if "java" in Path(f"/proc/{pid}/comm").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_jvm_that_is_stopped_or_killed_costs_one_episode() -> None:
    tasks = [task("lifespan-longest-lived", 5), task("find-animal", 3)]
    with EnvPool(FACTORY, {"heap_mb": 128, "simplifications": ["easy"]}, workers=1, step_timeout_s=20.0) as pool:
        begun = pool.reset([0, 1], tasks)
        worker, java = pool.pids()[0], java_of(pool.pids()[0])
        pool.step_timeout_s = 2.0
        stop(java)
        failure = pool.step([0], ["go to hallway"])[0]
        assert isinstance(failure, Failure) and failure.kind == "timeout"
        assert gone(worker, java), "the stopped JVM is not left behind"

        pool.step_timeout_s = 20.0
        turn = pool.step([1], ["look around"])[0]
        assert isinstance(turn, Turn) and turn.observation.startswith("This outside location"), "the other episode goes on"
        assert pool.counts == {"crashes": 0, "timeouts": 1, "errors": 0, "replaced": 1}

        worker, java = pool.pids()[0], java_of(pool.pids()[0])
        os.kill(java, signal.SIGKILL)
        failure = pool.step([1], ["look around"])[0]
        assert isinstance(failure, Failure) and failure.kind == "crash"
        assert gone(worker)
        assert pool.reset([0], tasks[:1])[0] == begun[0], "and the next episode starts"
        assert pool.counts == {"crashes": 1, "timeouts": 1, "errors": 0, "replaced": 2}

        worker, java = pool.pids()[0], java_of(pool.pids()[0])
        os.kill(worker, signal.SIGKILL)
        assert gone(java), "a JVM ends with its worker"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_has_one_jvm_for_all_its_episodes_and_bounds_it() -> None:
    with EnvPool(FACTORY, {"heap_mb": 128, "simplifications": ["easy"]}, workers=1, step_timeout_s=30.0) as pool:
        pool.reset(range(6), [task("find-animal", n) for n in range(6)])
        worker = pool.pids()[0]
        assert len(group(worker)) == 2
        command = Path(f"/proc/{java_of(worker)}/cmdline").read_text().split("\0")
        assert "-Xmx128m" in command and "-XX:hashCode=2" in command
    assert gone(worker)


def test_hostile_text_is_an_action_that_does_nothing(engine: Engine) -> None:
    env, one = ScienceworldEnv(engine), task("find-animal", 3)
    begin = env.reset(one).observation
    for action in ("", "a" * 10**6, "\x00\ud800", "look\n" * 1000, "⟨⟩ 🦆", "reset\x1b[2J", "9" * 300, "open " + "door " * 70, "% s {0} ${x}"):
        turn = env.step(action)
        assert not turn.valid and turn.score == 0 and not turn.done, action[:20]
        turn.observation.encode()
    assert env.reset(one).observation == begin


def test_environments_of_a_process_share_its_jvm() -> None:
    first, second = make(128, ["easy"]), make(128, ["easy"])
    try:
        assert first.engine is second.engine
        turns = [env.reset(task("find-animal", 3)).observation for env in (first, second)]
        assert turns[0] == turns[1]
    finally:
        first.engine.shutdown()
        from ratchet.envs.scienceworld.env import engine_of_process

        engine_of_process.cache_clear()


# ---- what a run prepares -------------------------------------------------------------------------------------------------


def test_prepare_writes_verified_paths_and_leaves_out_what_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ratchet.envs.scienceworld.gold as gold
    from ratchet.files import read_json

    real, failing = gold.gold_path, []

    def sometimes(engine: Engine, one: Task) -> list[str] | None:
        failing.append(one.task_id) if len(failing) < 1 else None
        return None if one.task_id in failing else real(engine, one)

    monkeypatch.setattr(gold, "gold_path", sometimes)
    options = Scienceworld.Options(tasks=["lifespan-longest-lived"], heap_mb=128)
    counts = {"train": 3, "seen": 1, "select": 2, "confirm": 2, "test": 2}
    tasks = Scienceworld().prepare(tmp_path, SimpleNamespace(options=options, workers=1), counts, 1)
    written = read_json(tmp_path / "gold.json")
    assert written["failed"] == failing and failing[0] not in written["paths"]
    assert [len(chosen) for chosen in tasks.values()] == [2, 1, 2, 2, 2]
    assert {one.task_id for split in ("train", "seen") for one in tasks[split]} == set(written["paths"])
    assert all(path[-1].startswith("focus on ") for path in written["paths"].values()), "cut where the task is solved"
