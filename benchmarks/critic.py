"""Measures what a critic costs: reading, the offline update, and whether its losses come to what dynamic programming says."""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
from rich.console import Console
from rich.progress import Progress

from benchmarks.critic_run import EPISODE, OFFLINE, ONLINE, STEP, Work, in_process
from benchmarks.peers import command
from benchmarks.peers.figures import summary
from benchmarks.peers.make import FIVE_MILLION, ONE_MILLION, TINY, Shape

ABOUT = """\
Measures the critic of Q-Evolve on the speed batch: episodes of 15 turns, 50 tokens read and 10 written a turn, on Llamas of 1M and 5M
parameters from scratch, fp32; a figure is the worse of the two. What is compared takes turns in one process.

  token_ratio_vs_per_step   tokens that fitting and labelling read with a pass for each step over those with one pass an episode
  time_ratio_vs_per_step    their times
  update_time_ratio         the offline update (BPPO and its divergence) over the online learner's (GRPO), same tokens
  tabular_error             IQL on a chain as tables against dynamic programming at τ = .5 and .7, the largest error of V and Q
"""

EXAMPLES = """\
examples:
  python benchmarks/critic.py                     the full run, some ten minutes on two cores
  python benchmarks/critic.py --quick             a check that it works, half a minute
  python benchmarks/critic.py --json mine.json    the result elsewhere
"""

PACKAGES = ("torch", "transformers", "accelerate", "numpy")


@dataclass(frozen=True)
class Size:
    """How much is measured: episodes, turns, tokens read and written a turn."""

    shapes: tuple[tuple[str, Shape], ...]
    reading: tuple[int, int, int, int]
    updates: tuple[int, int, int, int]
    rounds: int
    steps: int


FULL = Size((("1M", ONE_MILLION), ("5M", FIVE_MILLION)), (8, 15, 50, 10), (32, 15, 50, 10), 5, 4000)
QUICK = Size((("tiny", TINY),), (2, 15, 50, 10), (4, 15, 50, 10), 2, 2500)


def ratio(found: dict[str, list[dict[str, float]]], name: str, over: str, under: str) -> float:
    """Median over rounds."""
    return statistics.median(a[name] / b[name] for a, b in zip(found[over], found[under], strict=True))


def told(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    return {way: {"seconds": summary([one["seconds"] for one in all_of]), "tokens": all_of[-1]["tokens"]} for way, all_of in found.items()}


def run(size: Size, console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    figures, beside = [], {}
    with Progress(console=console) as progress:
        task = progress.add_task("critic", total=2 * len(size.shapes) + 1)
        for name, shape in size.shapes:
            measured = {}
            for what, batch in (("reading", size.reading), ("updates", size.updates)):
                measured[what] = in_process(Work(what, asdict(shape), *batch, size.rounds))
                progress.advance(task)
            figures.append(
                {
                    "token_ratio_vs_per_step": ratio(measured["reading"], "tokens", STEP, EPISODE),
                    "time_ratio_vs_per_step": ratio(measured["reading"], "seconds", STEP, EPISODE),
                    "update_time_ratio": ratio(measured["updates"], "seconds", OFFLINE, ONLINE),
                }
            )
            beside[name] = {"shape": asdict(shape), "figures": figures[-1], **{what: told(one) for what, one in measured.items()}}
        errors = in_process(Work("tabular", asdict(TINY), 0, 0, 0, 0, 0, size.steps))
        progress.advance(task)
    worst = {name: (max if name == "update_time_ratio" else min)(one[name] for one in figures) for name in figures[0]}
    result = {name: round(value, 4) for name, value in worst.items()} | {"tabular_error": float(f"{max(errors.values()):.3g}")}
    return result, {"models": beside, "tabular": errors}


def main() -> int:
    quick = "a tiny model and few episodes: shows that it works, not how fast anything is"
    return command.main("critic", ABOUT, EXAMPLES, quick, PACKAGES, lambda is_quick, console: run(QUICK if is_quick else FULL, console))


if __name__ == "__main__":
    sys.exit(main())
