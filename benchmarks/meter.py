"""Measures what it costs to ask a progress meter about every prefix of the episodes of an iteration."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
from rich.console import Console
from rich.progress import Progress

from benchmarks.meter_run import FORWARD, HEAD, SEPARATE, WRITTEN, Work, in_process
from benchmarks.peers import command
from benchmarks.peers.figures import summary
from benchmarks.peers.make import FIVE_MILLION, ONE_MILLION, TINY, Shape, make_world

ABOUT = """\
Asks a meter before every action of the speed batch: 64 episodes of 15 turns, 50 tokens read and 10 written a turn, 960 questions. Llamas
of 1M and 5M parameters, fp32; a figure is the worse of the two. The meters are taught the form of an answer first (half of the verdicts are
`true`, numbers have up to three digits), so that what is written is as long as in use. What is compared takes turns in one process.

  written_over_forward        time of all answers, 5 % of them written freely, over one forward pass of the same episodes
  head_over_forward           the same for the meter with a head, which writes nothing
  speedup_vs_separate         time of a sequence for each question over that of questions as branches
  scoring_share_of_iteration  share of a whole iteration (rollouts, credit, one update) that the written meter takes
  answers_differ              answers over branches that are not those of one question a sequence, greedy; verdicts and numbers
  unparsable_share            of the answers that were written freely
"""
EXAMPLES = """\
examples:
  python benchmarks/meter.py                     the full run, about fifteen minutes on two cores
  python benchmarks/meter.py --quick             a check that it works, half a minute
  python benchmarks/meter.py --json mine.json    the result elsewhere
"""
PACKAGES = ("torch", "transformers", "accelerate", "numpy")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    shapes: tuple[tuple[str, Shape], ...]
    batch: tuple[int, int, int, int]  # episodes, turns, tokens read and written a turn
    rounds: int
    iterations: int
    few: int  # episodes of what takes a sequence for each question
    fitted: int  # optimiser steps


FULL = Size((("1M", ONE_MILLION), ("5M", FIVE_MILLION)), (64, 15, 50, 10), 5, 3, 8, 100)
QUICK = Size((("tiny", TINY),), (6, 5, 20, 10), 2, 1, 2, 6)


def ratio(found: dict[str, list[dict[str, float]]], over: str, under: str) -> float:
    """Median over rounds of the seconds of one way over another's."""
    return statistics.median(a["seconds"] / b["seconds"] for a, b in zip(found[over], found[under], strict=True))


def measure(folder: Path, size: Size, advance: Callable[[], object]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures of one model, and what stands beside them."""

    def run(what: str, batch: tuple[int, int, int, int], **more: Any) -> Any:
        result = in_process(Work(str(folder), what, *batch, fitted=size.fitted, **more))
        advance()
        return result

    few = (size.few, *size.batch[1:])
    whole = run("ways", size.batch, rounds=size.rounds, ways=(FORWARD, WRITTEN, HEAD))
    against = run("ways", few, rounds=size.rounds, ways=(WRITTEN, SEPARATE))
    same = run("answers", few)
    turns = run("iterations", size.batch, rounds=size.iterations)["iterations"]
    free = sum(one["free"] for one in whole[WRITTEN])
    figures = {
        "written_over_forward": ratio(whole, WRITTEN, FORWARD),
        "head_over_forward": ratio(whole, HEAD, FORWARD),
        "speedup_vs_separate": ratio(against, SEPARATE, WRITTEN),
        "scoring_share_of_iteration": statistics.median(one["meter"] / one["seconds"] for one in turns),
        "answers_differ": same["differ"],
        "unparsable_share": sum(one["unparsable"] for one in whole[WRITTEN]) / max(free, 1),
    }
    seconds = {way: summary([one["seconds"] for one in found]) for way, found in whole.items()}
    return figures, {"seconds": seconds, "few_episodes": {way: summary([one["seconds"] for one in found]) for way, found in against.items()},
                     "answers": same, "iterations": turns, "written": whole[WRITTEN][-1]}  # fmt: skip


def worse(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each figure the worse model's."""
    return {name: round((min if name == "speedup_vs_separate" else max)(one[name] for one in found), 4) for name in found[0]}


def run(size: Size, console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    figures, told = [], {}
    with Progress(console=console) as progress:
        for name, shape in size.shapes:
            task = progress.add_task(name, total=4)
            with tempfile.TemporaryDirectory() as folder:
                tokens = size.batch[1] * (size.batch[2] + size.batch[3])
                parameters = make_world(Path(folder), tasks=8, shape=shape, context=2 * tokens)
                found, beside = measure(Path(folder), size, lambda task=task: progress.advance(task))
            figures.append(found)
            told[name] = {"parameters": parameters, "shape": asdict(shape), "figures": found, **beside}
    return worse(figures), {"models": told}


def main() -> int:
    quick = "a tiny model and few episodes: shows that it works, not how fast anything is"
    return command.main("meter", ABOUT, EXAMPLES, quick, PACKAGES, lambda is_quick, console: run(QUICK if is_quick else FULL, console))


if __name__ == "__main__":
    sys.exit(main())
