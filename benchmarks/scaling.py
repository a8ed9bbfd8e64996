"""Measures how the time and memory of our GRPO iteration grow with its episodes and with their turns."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
from rich.console import Console
from rich.progress import Progress

from benchmarks.peers import command
from benchmarks.peers.figures import slope
from benchmarks.peers.make import ONE_MILLION, TINY, Shape, make_world
from benchmarks.peers.spec import Iteration, Learning, in_process

ABOUT = """\
Measures a whole GRPO iteration (rollouts and one optimiser step on all episodes) at several numbers of episodes and of turns, each point
in a process of its own, and fits a power law through the points: time grows as episodes^a and turns^b. The model is a Llama of 1.1M
parameters from scratch; the world gives every turn the same number of tokens (benchmarks/peers/world.py).

  episodes   seconds at 16, 64 and 256 episodes of 15 turns
  turns      seconds at 5, 15 and 45 turns of 32 episodes
  memory     of the learner: MB that one update takes on top of the loaded model, at 16, 64 and 256 episodes of 15 turns

Twice through the points, in opposite orders; the least of both times counts, because what disturbs a time only makes it longer.
"""

EXAMPLES = """\
examples:
  python benchmarks/scaling.py                     the full run, about ten minutes on two cores
  python benchmarks/scaling.py --quick             a check that it works
  python benchmarks/scaling.py --json mine.json    the result elsewhere
"""

PACKAGES = ("torch", "transformers", "numpy")
SAMPLES = 4  # episodes of a group


@dataclass(frozen=True)
class Size:
    """Which points are measured."""

    shape: Shape
    episodes: tuple[int, ...]
    turns: tuple[int, ...]
    at_turns: int
    at_episodes: int
    rounds: int


FULL = Size(ONE_MILLION, (16, 64, 256), (5, 15, 45), 15, 32, 2)
QUICK = Size(TINY, (8, 16), (2, 4), 3, 8, 1)


def points(size: Size) -> list[tuple[int, int]]:
    """(episodes, turns) of each point, each once."""
    asked = [(episodes, size.at_turns) for episodes in size.episodes] + [(size.at_episodes, turns) for turns in size.turns]
    return list(dict.fromkeys(asked))


def measure_times(folder: str, size: Size, advance: Callable[[], object]) -> dict[tuple[int, int], dict[str, Any]]:
    """The quickest iteration at each point."""
    best: dict[tuple[int, int], dict[str, Any]] = {}
    for number in range(size.rounds):
        for episodes, turns in points(size)[:: 1 if number % 2 == 0 else -1]:
            spec = Iteration(folder, turns=turns, tasks=episodes // SAMPLES, samples=SAMPLES)
            result = in_process("ours", spec)
            one = {**result["iterations"][0], "peak_mb": result["peak_mb"]}
            known = best.get((episodes, turns))
            if known is None or one["seconds"] < known["seconds"]:
                best[episodes, turns] = one
            advance()
    return best


def measure_memory(folder: str, size: Size, advance: Callable[[], object]) -> dict[int, dict[str, Any]]:
    """One update at each number of episodes."""
    tokens = Iteration(folder, size.at_turns, 1, 1).tokens
    found = {}
    for episodes in size.episodes:
        found[episodes] = in_process("learner", Learning(folder, episodes, (tokens, tokens)))
        advance()
    return found


def run(size: Size, console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    """The exponents, and the points that they go through."""
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:

        def bar(name: str, total: int) -> Callable[[], object]:
            task = progress.add_task(name, total=total)
            return lambda: progress.advance(task)

        make_world(Path(folder), tasks=max(*size.episodes, size.at_episodes) // SAMPLES, shape=size.shape, context=4096)
        times = measure_times(folder, size, bar("iterations", size.rounds * len(points(size))))
        memory = measure_memory(folder, size, bar("learner's memory", len(size.episodes)))
    by_episodes = [times[episodes, size.at_turns] for episodes in size.episodes]
    by_turns = [times[size.at_episodes, turns] for turns in size.turns]
    figures = {
        "episodes_exponent": slope(size.episodes, [one["seconds"] for one in by_episodes]),
        "turns_exponent": slope(size.turns, [one["seconds"] for one in by_turns]),
        "memory_exponent_episodes": slope(size.episodes, [memory[episodes]["mb_on_top"] for episodes in size.episodes]),
    }
    told = {
        "points": [
            {"episodes": episodes, "turns": turns, **{name: one[name] for name in ("seconds", "rollout_s", "update_s", "cpu_s", "peak_mb")}}
            for (episodes, turns), one in times.items()
        ],
        "learner_memory": [{"episodes": episodes, **one} for episodes, one in memory.items()],
        "rollout_exponents": {
            "episodes": slope(size.episodes, [one["rollout_s"] for one in by_episodes]),
            "turns": slope(size.turns, [one["rollout_s"] for one in by_turns]),
        },
        "update_exponents": {
            "episodes": slope(size.episodes, [one["update_s"] for one in by_episodes]),
            "turns": slope(size.turns, [one["update_s"] for one in by_turns]),
        },
        "whole_process_memory_exponent_episodes": slope(size.episodes, [memory[episodes]["peak_mb"] for episodes in size.episodes]),
        "shape": asdict(size.shape),
    }
    return figures, told


def main() -> int:
    quick = "a tiny model and few points: shows that it works, not how anything grows"
    return command.main("scaling", ABOUT, EXAMPLES, quick, PACKAGES, lambda is_quick, console: run(QUICK if is_quick else FULL, console))


if __name__ == "__main__":
    sys.exit(main())
