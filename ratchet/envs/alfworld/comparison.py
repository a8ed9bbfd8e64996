"""Both engines side by side: the same commands, and everything they say held to be the same, byte for byte."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ratchet.envs.alfworld.compiled import CompiledGame
from ratchet.envs.alfworld.expert import AlfworldExpert
from ratchet.envs.alfworld.games import Game, game_task
from ratchet.envs.alfworld.oracle import Oracle
from ratchet.envs.alfworld.textworld_engine import TextworldGame
from ratchet.envs.base import Turn

WALKS = ("oracle", "exploring", "random")
DISTURBED = 0.25  # share of commands that are wrong or a repetition of the one before

Policy = Callable[[Turn], str]
State = tuple[str, bool, bool, tuple[str, ...]]  # text, valid, won, admissible commands


@dataclass(frozen=True, slots=True)
class Difference:
    """The first command after which the engines differ (empty: at reset), and what each gave."""

    command: str
    real: State
    compiled: State


def compare_walk(
    real: TextworldGame, compiled: CompiledGame, policy: Callable[[str, tuple[str, ...]], Policy], steps: int, rng: random.Random
) -> tuple[int, Difference | None]:
    """(commands compared, first difference) of one walk; play goes on after winning, as in the engines themselves.

    `policy` is called with the intro and the first admissible commands and returns what chooses each next command.
    """
    states: tuple[State, State] = (
        (real.reset(), True, real.won, real.admissible),
        (compiled.reset(), True, compiled.won, compiled.admissible),
    )
    if states[0] != states[1]:
        return 0, Difference("", *states)
    choose, last = policy(states[1][0], states[1][3]), "look"
    for step in range(1, steps + 1):
        text, valid, _, admissible = states[1]
        disturb = rng.random() < DISTURBED
        command = disturbance(compiled, last, rng) if disturb else choose(Turn(text, admissible, valid=valid))
        states = (_play(real, command), _play(compiled, command))
        if states[0] != states[1]:
            return step, Difference(command, *states)
        last = command
    return steps, None


def _play(game: TextworldGame | CompiledGame, command: str) -> State:
    text, valid = game.step(command)
    return text, valid, game.won, game.admissible


def walk_policy(walk: str, game: Game, rng: random.Random) -> Callable[[str, tuple[str, ...]], Policy]:
    """One of `WALKS` on a generated game, for `compare_walk`."""
    if walk == "random":
        return lambda intro, admissible: lambda turn: random_command(turn.admissible, rng)
    expert = Oracle(game) if walk == "oracle" else AlfworldExpert()

    def start(intro: str, admissible: tuple[str, ...]) -> Policy:
        expert.reset(game_task(game, "train"), Turn(intro, admissible))
        return lambda turn: expert.act(turn)[1]

    return start


def random_command(admissible: tuple[str, ...], rng: random.Random) -> str:
    """An admissible command, mostly one that changes something other than the place."""
    rarer = ("go to", "help", "inventory", "look")
    changing = [command for command in admissible if not command.startswith(rarer)]
    return rng.choice(changing if changing and rng.random() < 0.6 else admissible)


def disturbance(game: CompiledGame, last: str, rng: random.Random) -> str:
    """A wrong, malformed or repeated command."""
    world = game.world
    thing, place = rng.choice(world.object_names), rng.choice(world.receptacle_names)
    some = rng.choice(game.admissible)
    return rng.choice(
        (
            last,
            last,
            f"  {some}\t",
            some.upper(),
            some + ".",
            some.replace(" ", "  ", 1),
            some.replace("go to", "goto").replace("move", "put"),
            f"take {thing} from {place}",
            f"move {thing} to {place}",
            f"heat {thing} with {place}",
            f"slice {thing} with {rng.choice(world.object_names)}",
            f"use {thing}",
            f"open {place}",
            f"examine {rng.choice((thing, place))}",
            f"go to {thing}",
            "",
            "dance \u00e9\u4e16\x07",
        )
    )


def compare_game(game: Game, real: TextworldGame, compiled: CompiledGame, steps: int, seed: int) -> tuple[int, Difference | None]:
    """(commands compared, first difference) over the oracle, exploring and random walks of one generated game."""
    total = 0
    for walk in WALKS:
        rng = random.Random(f"{seed}/{walk}/{game.task_id}")
        compared, difference = compare_walk(real, compiled, walk_policy(walk, game, rng), steps, rng)
        total += compared
        if difference is not None:
            return total, difference
    return total, None
