"""Measures the compiled ALFWorld engine against the real one: speed side by side, and byte-identity of what both say."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# This file has the name of the alfworld package, so its own folder must not be searched for imports.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
from rich.console import Console
from rich.progress import Progress

from benchmarks.common import machine, write
from ratchet.envs.alfworld import AlfworldEnv, CompiledGame, Game, TextworldGame, game_data, game_task, generate_games, world_from_game
from ratchet.envs.alfworld.comparison import compare_game, random_command
from ratchet.errors import RatchetError

ABOUT = """\
Compares the two engines that play ALFWorld games.

  speed      the same commands, as random walks, through both engines in one run: steps a second with the list of admissible
             commands, in rooms of at most 6 and at most 14 receptacles; the figures are of the room size with the smaller
             ratio, each the median of several rounds
  identity   games of all six task types (rooms of 6, 14 and all receptacles) walked by an oracle, by the exploring expert and
             at random, with wrong and repeated commands in between; text, validity, admissible list and goal must be equal
             after every command

The games are generated; nothing here is a score on a benchmark. The real engine needs the textworld extra (make install-all).
"""

EXAMPLES = """\
examples:
  python benchmarks/alfworld.py                     the full run, about five minutes
  python benchmarks/alfworld.py --quick             a check that it works, under a minute
  python benchmarks/alfworld.py --json mine.json    the result elsewhere
"""

ROOMS = (6, 14)
IDENTITY_ROOMS = (6, 6, 14, None)
COMPILED_REPEATS = 20  # the same walks again, so that a round of the fast engine lasts long enough to be timed
PACKAGES = ("alfworld", "textworld", "fast-downward-textworld", "tatsu", "pyarrow")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    games_per_round: int
    walk: int
    identity_games: int
    identity_steps: int


FULL = Size(rounds=7, games_per_round=6, walk=30, identity_games=216, identity_steps=16)
QUICK = Size(rounds=3, games_per_round=2, walk=12, identity_games=12, identity_steps=10)


@dataclass(frozen=True)
class Speed:
    """Medians over the rounds in one room size."""

    compiled: float
    real: float
    ratio: float
    reset_ms: float


def record_walk(env: AlfworldEnv, game: Game, steps: int) -> list[str]:
    """A random walk's commands, up to the end of the episode."""
    rng = random.Random(game.task_id)
    turn, commands = env.reset(game_task(game, "train")), []
    while len(commands) < steps and not turn.done:
        commands.append(random_command(turn.admissible, rng))
        turn = env.step(commands[-1])
    return commands


def steps_per_second(env: AlfworldEnv, walks: list[tuple[Game, list[str]]], repeats: int) -> tuple[float, list[float]]:
    """(steps a second without the resets, milliseconds of each reset)."""
    steps, seconds, resets = 0, 0.0, []
    for _ in range(repeats):
        for game, commands in walks:
            begin = time.perf_counter()
            env.reset(game_task(game, "train"))
            middle = time.perf_counter()
            for command in commands:
                env.step(command)
            seconds += time.perf_counter() - middle
            resets.append((middle - begin) * 1000)
            steps += len(commands)
    return steps / seconds, resets


def measure_speed(room: int, size: Size, progress: Progress) -> Speed:
    """Both engines on the same walks, round by round."""
    games = generate_games("train", size.rounds * size.games_per_round, 1, room)
    by_id = {game.task_id: game for game in games}
    compiled, real = AlfworldEnv(by_id, "compiled"), AlfworldEnv(by_id, "textworld")
    walks = [(game, record_walk(compiled, game, size.walk)) for game in games]
    steps_per_second(real, walks[:1], 1)  # fills the parse caches, as in long use
    bar = progress.add_task(f"speed, rooms of {room}", total=size.rounds)
    rows = []
    for i in range(size.rounds):
        mine = walks[i * size.games_per_round : (i + 1) * size.games_per_round]
        slow, _ = steps_per_second(real, mine, 1)
        fast, resets = steps_per_second(compiled, mine, COMPILED_REPEATS)
        rows.append((fast, slow, fast / slow, statistics.median(resets)))
        progress.advance(bar)
    return Speed(*(statistics.median(column) for column in zip(*rows, strict=True)))


def measure_identity(size: Size, progress: Progress, console: Console) -> tuple[int, int, int]:
    """(identical games, different games, commands compared)."""
    same = different = commands = 0
    bar = progress.add_task("identity", total=size.identity_games)
    share = size.identity_games // len(IDENTITY_ROOMS)
    for number, room in enumerate(IDENTITY_ROOMS):
        for game in generate_games("test" if number % 2 else "train", share, 100 + number, room):
            real, compiled = TextworldGame(game_data(game)), CompiledGame(world_from_game(game))
            compared, difference = compare_game(game, real, compiled, size.identity_steps, seed=number)
            commands += compared
            same, different = same + (difference is None), different + (difference is not None)
            if difference is not None:
                console.print(f"{game.task_id} differs after {difference.command!r}:\n  {difference.real}\n  {difference.compiled}")
            progress.advance(bar)
    return same, different, commands


def run(size: Size, console: Console) -> dict[str, float | int]:
    """All figures."""
    with Progress(console=console) as progress:
        speeds = {room: measure_speed(room, size, progress) for room in ROOMS}
        same, different, commands = measure_identity(size, progress, console)
    room = min(speeds, key=lambda r: speeds[r].ratio)
    worst = speeds[room]
    console.print(f"rooms of at most {room} receptacles have the smaller ratio; {commands} commands compared")
    return {
        "compiled_steps_per_s": round(worst.compiled),
        "real_steps_per_s": round(worst.real, 1),
        "compiled_over_real": round(worst.ratio),
        "reset_ms": round(max(speed.reset_ms for speed in speeds.values()), 3),
        "identical_games": same,
        "different_games": different,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/alfworld.json"), metavar="PATH", help="where the result goes")
    parser.add_argument("--quick", action="store_true", help="fewer games and rounds: shows that it works, not how fast it is")
    options = parser.parse_args()
    console, before = Console(stderr=True), machine()
    try:
        figures = run(QUICK if options.quick else FULL, console)
    except RatchetError as error:
        console.print(str(error), markup=False)
        return 2
    command = "python benchmarks/alfworld.py" + (" --quick" if options.quick else "")
    write(options.json, figures, command, PACKAGES, measured_on=before)
    for name, value in figures.items():
        console.print(f"{name:24}{value:>12,}")
    return 0 if figures["different_games"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
