"""The ScienceWorld expert: what it says follows from what was read, and what it does still reaches 100."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ratchet.envs.base import Task, Turn
from ratchet.envs.scienceworld.engine import Engine
from ratchet.envs.scienceworld.env import ScienceworldEnv, version_of
from ratchet.envs.scienceworld.expert import ScienceworldExpert, animals_in, named_as, names_in
from ratchet.envs.scienceworld.gold import gold_path, gold_paths
from ratchet.errors import RatchetError

GREENHOUSE = """This room is called the greenhouse. In it, you see: \n\tthe agent\n\ta substance called air
\ta flower pot 4 (containing a cherry tree in the adult stage, soil)\n\ta jug (containing nothing)
\ta sink, which is turned off. In the sink is: nothing.\nYou also see:\n\tA door to the hallway (that is open)\n"""
OUTSIDE = """This outside location is called the outside. Here you see: \n\tthe agent\n\ta substance called air\n\tan axe
\ta baby ant\n\ta giant tortoise egg\n\tan ant in the adult stage\n\tthe ground\n\ta substance called wood
You also see:\n\tA door to the kitchen (that is open)\n"""
LONGEST = "Your task is to find the animal with the longest life span.  The animals are in the 'outside' location.  Focus on the animal with the longest life span."
PLANT = "Your task is to find a(n) plant. First, focus on the thing. Then, move it to the orange box in the bathroom."


def expert_at(description: str, look: str, path: list[str]) -> tuple[ScienceworldExpert, Turn]:
    task = Task("scienceworld", "1", "x/1", "train", "x", "x/1")
    expert, turn = ScienceworldExpert({"x/1": path}), Turn(f"{description}\n\n{look.strip()}", ())
    expert.reset(task, turn)
    return expert, turn


def replies(expert: ScienceworldExpert, turn: Turn, *answers: str) -> list[tuple[str, str]]:
    return [expert.act(turn), *(expert.act(Turn(answer, ())) for answer in answers)]


def test_names_and_animals_are_read_from_descriptions() -> None:
    assert names_in(GREENHOUSE)[1:5] == ["agent", "air", "flower pot 4", "cherry tree"]
    assert animals_in(OUTSIDE) == ["ant", "giant tortoise", "ant"]
    assert named_as("egg giant tortoise", names_in(OUTSIDE)) == "giant tortoise egg"
    assert named_as("ant", names_in(OUTSIDE)) == "ant", "two things fit, so it stays as the engine says it"


def test_it_looks_before_it_chooses_and_says_among_what() -> None:
    expert, turn = expert_at(LONGEST, GREENHOUSE, ["open door to outside", "go to outside", "focus on egg giant tortoise", "wait1"])
    assert replies(expert, turn, "You move to the outside.", OUTSIDE) == [
        ("need longest life span ; animals in outside ; go outside", "go to outside"),
        ("need longest life span ; at outside ; look", "look around"),
        ("animals ant, giant tortoise, ant ; longest giant tortoise ; focus", "focus on giant tortoise egg"),
    ]


def test_it_says_what_is_needed_found_and_held() -> None:
    path = ["look around", "focus on adult cherry tree", "pick up flower pot 4", "open door to hallway", "go to hallway", "move flower pot 4 containing soil in inventory to orange box"]
    expert, turn = expert_at(PLANT, GREENHOUSE, path)
    assert replies(expert, turn, "You focus on the cherry tree.", "You move the flower pot 4 to the inventory.", "You move to the hallway.") == [
        ("need plant ; adult cherry tree here ; focus", "focus on adult cherry tree"),
        ("cherry tree found ; take flower pot 4", "pick up flower pot 4"),
        ("flower pot 4 held ; need orange box in bathroom ; go hallway", "go to hallway"),
        ("flower pot 4 held ; orange box here ; put", "move flower pot 4 to orange box"),
    ]


def test_closed_doors_are_opened() -> None:
    expert, turn = expert_at(PLANT, GREENHOUSE.replace("(that is open)", "(that is closed)"), ["open door to hallway", "go to hallway"])
    assert replies(expert, turn, "The door is now open.") == [
        ("need plant ; try hallway ; open hallway", "open door to hallway"),
        ("need plant ; try hallway ; go hallway", "go to hallway"),
    ]


def test_other_tasks_are_played_as_the_engine_plays_them() -> None:
    path = ["open door to kitchen", "look around", "focus on water", "wait1"]
    expert, turn = expert_at("Your task is to boil water.", GREENHOUSE, path)
    assert replies(expert, turn, "", "", "", "") == [*(("", action) for action in path), ("", "look around")]


def test_a_task_without_a_path_is_named() -> None:
    with pytest.raises(RatchetError, match="no gold path for 'find-plant/280'"):
        ScienceworldExpert({}).reset(Task("scienceworld", "1", "find-plant/280", "test", "", ""), Turn("", ()))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    pytest.importorskip("scienceworld", reason="the extra scienceworld is not installed")
    one = Engine(256)
    yield one
    one.shutdown()


def task(name: str, variation: int, simplification: str = "easy") -> Task:
    task_id = f"{name}/{variation}"
    return Task("scienceworld", version_of([simplification] if simplification else []), task_id, "train", name, task_id)


@pytest.mark.parametrize("simplification", ["easy", ""])
@pytest.mark.parametrize(
    "name",
    ["lifespan-longest-lived-then-shortest-lived", "lifespan-shortest-lived", "find-animal", "find-living-thing", "find-non-living-thing", "find-plant"],
)
def test_it_solves_what_the_gold_path_solves(engine: Engine, name: str, simplification: str) -> None:
    env = ScienceworldEnv(engine, [simplification] if simplification else [])
    for variation in (21, 33):
        one = task(name, variation, simplification)
        path = gold_path(engine, one)
        assert path is not None
        expert, turn, length = ScienceworldExpert({one.task_id: path}), env.reset(one), 0
        expert.reset(one, turn)
        while not turn.done and length < 40:
            thought, action = expert.act(turn)
            assert thought and ">" not in thought and "\n" not in thought
            turn, length = env.step(action), length + 1
            assert turn.valid and "Ambiguous" not in turn.observation, action
        assert turn.solved, one.task_id


def test_a_gold_path_that_does_not_reach_100_is_none(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.envs.scienceworld.engine import World

    one = task("lifespan-longest-lived", 5)
    assert gold_paths([one], [engine]) == [gold_path(engine, one)] != [None]
    real = World.gold_path
    monkeypatch.setattr(World, "gold_path", lambda world: real(world)[:-2])
    assert gold_path(engine, one) is None
    monkeypatch.setattr(World, "gold_path", lambda world: [*real(world)[:-2], "focus on axe"])
    assert gold_path(engine, one) is None, "ended, but below zero"
