"""The compiled ALFWorld engine says what the real one says, and leaves to it what was never compared."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.envs.alfworld import (
    AlfworldEnv,
    AlfworldExpert,
    CompiledGame,
    Game,
    TextworldGame,
    export_game,
    game_data,
    generate_games,
    textworld_engine as real_engine,
    user_games,
    user_task,
)
from ratchet.envs.alfworld.comparison import compare_game, compare_walk, walk_policy
from ratchet.envs.alfworld.layouts import scene
from ratchet.envs.alfworld.pddl import NotCompilable, world_from_data
from ratchet.envs.alfworld.world import world_from_game
from ratchet.errors import RatchetError

needs_textworld = pytest.mark.skipif(not real_engine.available(), reason="the real engine needs the textworld extra: make install-all")

COMPARED = [(room, split, n) for room, split, n in ((6, "train", 12), (14, "test", 6), (None, "select", 2))]


@needs_textworld
@pytest.mark.parametrize(("room", "split", "n"), COMPARED)
def test_both_engines_say_the_same_on_oracle_exploring_and_random_walks(room: int | None, split: str, n: int):
    for game in generate_games(split, n, 11, room):
        compared, difference = compare_game(game, TextworldGame(game_data(game)), CompiledGame(world_from_game(game)), 14, seed=1)
        assert difference is None, (game.task_id, difference)
        assert compared == 3 * 14


@needs_textworld
def test_the_engines_agree_on_winning(tmp_path: Path):
    for game in generate_games("train", 6, 12, 6):
        folder = tmp_path / "json_2.1.1" / "train" / f"{game.task_type}-a-None-b-{game.scene}" / "trial_1"
        export_game(game, folder)
    games = user_games(tmp_path, "train")
    for task in (user_task(game, "train") for game in games.values()):
        solved = []
        for engine in ("textworld", "compiled"):
            env = AlfworldEnv(games, engine)
            turn, policy = env.reset(task), expert_policy()
            for _ in range(30):
                if turn.done:
                    break
                turn = env.step(policy(task, turn))
            solved.append((turn.solved, turn.reward, turn.score, turn.observation))
        assert solved[0] == solved[1] and solved[0][0]


def expert_policy() -> Callable:
    """The exploring expert as one function."""
    expert, started = AlfworldExpert(), []

    def choose(task, turn) -> str:
        if not started:
            expert.reset(task, turn)
            started.append(True)
        return expert.act(turn)[1]

    return choose


def altered_facts(problem: str, parent: str, rng: random.Random) -> str:
    """The problem with facts that downloaded games may have and generated ones do not, its goal still within reach."""
    init, goal = problem.split("(:goal", 1)
    objects, receptacles = re.findall(r"\(objectType (\S+) ", init), re.findall(r"\(receptacleType (\S+) ", init)
    places = re.findall(r"(loc\S+) - location", init)
    added = [f"(opened {r})" for r in re.findall(r"\(openable (\S+)\)", init) if rng.random() < 0.4]
    for state in ("isHot", "isCool", "isClean", "isSliced", "isToggled", "isOn", "isReceptacleObject", "sliceable", "toggleable"):
        added += [f"({state} {o})" for o in objects if rng.random() < 0.2]
    for o in objects:
        added += [f"(inReceptacleObject {o} {other})" for other in rng.sample(objects, 1) if other != o and rng.random() < 0.3]
        added += [f"(objectAtLocation {o} {rng.choice(places)})"] * (rng.random() < 0.1)
        added += [f"(inReceptacle {o} {rng.choice(receptacles)})"] * (rng.random() < 0.1)
    init = init.replace("(:init\n", "(:init\n" + "\n".join(sorted(set(added))) + "\n")
    init = re.sub(r"\(atLocation agent1 \S+\)", f"(atLocation agent1 {rng.choice(places)})", init)
    spare = [r for r in receptacles if not r.startswith((parent, "Sink", "Microwave"))]
    nowhere = rng.choice(spare) if len(spare) > 3 else "-"
    return re.sub(rf"\(receptacleAtLocation {re.escape(nowhere)} \S+\)", "", init) + "(:goal" + goal


@needs_textworld
def test_both_engines_say_the_same_on_facts_that_only_downloaded_games_have():
    kinds = ["pick_and_place_simple", "pick_clean_then_place_in_recep", "pick_heat_then_place_in_recep", "pick_two_obj_and_place"]
    compared = 0
    for number, game in enumerate(generate_games("train", 12, 13, 8, task_types=kinds)):
        rng = random.Random(number)
        data = game_data(game)
        data["pddl_problem"] = altered_facts(data["pddl_problem"], game.parent, rng)
        try:
            real = TextworldGame(data)
        except KeyError:  # it cannot load a game whose goal is out of reach from the start; the compiled engine can
            continue
        policy = walk_policy("random", game, rng)
        commands, difference = compare_walk(real, CompiledGame(world_from_data(data)), policy, 25, rng)
        assert difference is None, (game.task_id, difference)
        compared += commands
    assert compared >= 6 * 25


@needs_textworld
def test_both_engines_describe_an_object_in_every_state_the_same():
    positions = {r.type: i for i, r in enumerate(scene(11).receptacles)}
    places = tuple(sorted(positions[kind] for kind in ("CounterTop", "Microwave", "Fridge")))
    apples = (("Apple", positions["CounterTop"]),) * 18
    game = Game("states", "pick_and_place_simple", 11, "r3", "put a apple in fridge", "Apple", "Fridge", places, apples)
    data = game_data(game)
    ids = re.findall(r"\(objectType (\S+) ", data["pddl_problem"].split("(:goal")[0])
    facts = [f"({state} {o})" for n, o in enumerate(ids[:16]) for bit, state in enumerate(STATES_SHOWN) if n >> bit & 1]
    facts += [f"(toggleable {o})" for o in ids[16:]] + [f"(isToggled {ids[17]})"]
    data["pddl_problem"] = data["pddl_problem"].replace("(:init", "(:init " + " ".join(facts))
    real, compiled = TextworldGame(data), CompiledGame(world_from_data(data))
    assert real.reset() == compiled.reset()
    texts = set()
    for command in ["go to countertop 1", *(c for n in range(1, 19) for c in apple_commands(n))]:
        said = real.step(command)
        assert said == compiled.step(command) and said[1]
        texts |= {re.sub(r"\d+", "", said[0])} if command.startswith("examine") else set()
    assert len(texts) == 13  # clean or not, hot, cool or neither, sliced or not; and a toggled one


STATES_SHOWN = ("isClean", "isHot", "isCool", "isSliced")


def apple_commands(n: int) -> list[str]:
    """Takes, examines and puts back one apple."""
    return [f"take apple {n} from countertop 1", f"examine apple {n}", f"move apple {n} to countertop 1"]


@needs_textworld
def test_the_real_engine_leaves_argv_and_stdout_alone():
    argv, stdout = sys.argv, sys.stdout
    game = TextworldGame(game_data(generate_games("train", 1, 14, 6)[0]))
    game.reset()
    game.step("look")
    assert sys.argv is argv and sys.stdout is stdout


ALTERATIONS: dict[str, Callable[[dict], None]] = {
    "domain": lambda data: data.update(pddl_domain=data["pddl_domain"] + "\n; another version"),
    "grammar": lambda data: data.update(grammar=data["grammar"].replace("You open the", "You pull open the")),
    "task with symbols": lambda data: data.update(grammar=re.sub(r"task is to: [^.]*", "task is to: put a #mug# there", data["grammar"])),
    "goal": lambda data: data.update(pddl_problem=data["pddl_problem"].replace("(inReceptacle ?o ?r)", "(not (inReceptacle ?o ?r))")),
    "fact": lambda data: data.update(pddl_problem=data["pddl_problem"].replace("(:init", "(:init (holdsAny agent1)")),
    "receptacle at two places": lambda data: data.update(
        pddl_problem=re.sub(r"(\(receptacleAtLocation \S+ )\S+\)", lambda m: f"{m[0]} {m[1]}loc_bar_0)", data["pddl_problem"], count=1)
    ),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_a_game_unlike_those_compared_is_not_compiled(name: str):
    data = game_data(generate_games("train", 1, 15, 6)[0])
    world_from_data(data)
    ALTERATIONS[name](data)
    with pytest.raises(NotCompilable):
        world_from_data(data)


def in_user_layout(game: Game, root: Path, alter: Callable[[dict], None] | None = None) -> None:
    """Exports `game` where the json_2.1.1 data would have it."""
    path = export_game(game, root / "json_2.1.1" / "valid_seen" / f"{game.task_type}-A-None-B-{game.scene}" / "trial_T1")
    if alter is not None:
        data = json.loads(path.read_text())
        alter(data)
        path.write_text(json.dumps(data))


@needs_textworld
def test_a_game_with_another_grammar_goes_to_the_real_engine_by_itself(tmp_path: Path):
    game = next(g for g in generate_games("train", 60, 16, 6) if any(world_from_game(g).openable))
    in_user_layout(game, tmp_path, ALTERATIONS["grammar"])
    games = user_games(tmp_path, "valid_seen")
    (task,) = (user_task(found, "seen") for found in games.values())
    env = AlfworldEnv(games)
    env.reset(task)
    world = world_from_game(game)
    name = world.receptacle_names[world.openable.index(True)]
    env.step(f"go to {name}")
    assert env.step(f"open {name}").observation.startswith(f"You pull open the {name}.")
    with pytest.raises(RatchetError, match="another text grammar"):
        AlfworldEnv(games, "compiled").reset(task)


def test_without_textworld_the_real_engine_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    real_engine._pddl_module.cache_clear()
    monkeypatch.setattr(real_engine, "available", lambda: False)
    with pytest.raises(RatchetError, match="make install-all"):
        TextworldGame({})
