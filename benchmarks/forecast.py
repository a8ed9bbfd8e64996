"""Measures what forecasting (CoPE) costs when its forecasts are branches of the episodes' own passes."""

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

from benchmarks.forecast_run import ALL, GRPO, PER_STEP, SAMPLED, Work, in_process
from benchmarks.peers import command
from benchmarks.peers.figures import summary
from benchmarks.peers.make import FIVE_MILLION, ONE_MILLION, TINY, Shape, make_world

ABOUT = """\
Measures updates and whole iterations of GRPO with and without the forecast term (K = 2: at a point of an episode the next three actions
are asked for) on the speed batch: 64 episodes of 15 turns, 50 tokens read and 10 written a turn, of which 8 are the action's. Every
episode has forecasts, as if all were successes; with the paper's gate only the successes have, so these are upper bounds. Llamas of 1M
and 5M parameters from scratch, fp32; a figure is the worse of the two. What is compared takes turns in one process,
a quarter of the batch at a time; an iteration's rollouts, which are the same whatever is learned from them, are played once for both.

  token_cost_ratio            time a token of a pass with branches over that of one without
  update_overhead_all         an update with forecasts at every prefix over GRPO's, minus one
  update_overhead_sampled     the same with two prefixes an episode, drawn anew for each update
  iteration_overhead_sampled  a whole iteration, rollouts included, with two prefixes over GRPO's, minus one
  token_ratio_vs_per_step     tokens of a pass for each prefix over those of branches, every prefix
  time_ratio_vs_per_step      their times
  peak_memory_ratio           peak resident memory of a process that updates with forecasts at every prefix over GRPO's
  gradient_max_rel_difference gradients of branches against those of a pass for each prefix: the worst tensor's max |Δ| ÷ max |g|

Beside them stand the same measures on short episodes (8 turns of 22 read and 8 written), as ALFWorld's are.
"""

EXAMPLES = """\
examples:
  python benchmarks/forecast.py                     the full run, about twenty minutes on two cores
  python benchmarks/forecast.py --quick             a check that it works, half a minute
  python benchmarks/forecast.py --json mine.json    the result elsewhere
"""

PACKAGES = ("torch", "transformers", "accelerate", "numpy")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    shapes: tuple[tuple[str, Shape, int, int], ...]  # name, shape, and how often what is compared takes its turn: updates, iterations
    long: tuple[int, int, int, int]  # episodes, turns, tokens read and written a turn
    short: tuple[int, int, int, int]
    few: int  # episodes of what takes a pass for each prefix


FULL = Size((("1M", ONE_MILLION, 11, 7), ("5M", FIVE_MILLION, 5, 5)), (64, 15, 50, 10), (64, 8, 22, 8), 8)
QUICK = Size((("tiny", TINY, 2, 1),), (6, 5, 20, 10), (6, 3, 10, 8), 2)


def ratios(found: dict[str, list[dict[str, float]]], name: str, over: str, under: str) -> list[float]:
    """`name` of the way `over` divided by that of `under`, round by round."""
    return [a[name] / b[name] for a, b in zip(found[over], found[under], strict=True)]


def per_token(found: dict[str, list[dict[str, float]]], over: str, under: str) -> list[float]:
    tokens = ratios(found, "tokens", over, under)
    return [time / size for time, size in zip(ratios(found, "seconds", over, under), tokens, strict=True)]


def of_updates(found: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Figures of updates that took turns."""
    return {
        "token_cost_ratio": statistics.median(per_token(found, ALL, GRPO)),
        "update_overhead_all": statistics.median(ratios(found, "seconds", ALL, GRPO)) - 1,
        "update_overhead_sampled": statistics.median(ratios(found, "seconds", SAMPLED, GRPO)) - 1,
    }


def measure(folder: Path, size: Size, rounds: int, iterations: int, advance: Callable[[], object]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures of one model, and what stands beside them."""

    def run(what: str, batch: tuple[int, int, int, int], **more: Any) -> Any:
        result = in_process(Work(str(folder), what, *batch, **more))
        advance()
        return result

    few = (size.few, *size.long[1:])
    updates = run("updates", size.long, rounds=rounds, ways=(GRPO, SAMPLED, ALL))
    against = run("updates", few, rounds=rounds, ways=(ALL, PER_STEP))
    short = run("updates", size.short, rounds=rounds, ways=(GRPO, SAMPLED, ALL))
    whole = run("iterations", size.long, rounds=iterations, ways=(GRPO, SAMPLED))
    memory = {way: run("memory", size.long, ways=(way,)) for way in (GRPO, ALL)}
    gap = run("gradients", few)
    figures = of_updates(updates) | {
        "iteration_overhead_sampled": statistics.median(ratios(whole, "seconds", SAMPLED, GRPO)) - 1,
        "token_ratio_vs_per_step": statistics.median(ratios(against, "tokens", PER_STEP, ALL)),
        "time_ratio_vs_per_step": statistics.median(ratios(against, "seconds", PER_STEP, ALL)),
        "peak_memory_ratio": memory[ALL]["peak_mb"] / memory[GRPO]["peak_mb"],
        "gradient_max_rel_difference": gap["furthest"],
    }
    told = {
        "updates": seconds_of(updates),
        "few_episodes": seconds_of(against),
        "short_episodes": seconds_of(short) | {"figures": {name: round(value, 4) for name, value in of_updates(short).items()}},
        "iterations": seconds_of(whole),
        "memory": memory,
        "gradients": gap,
    }
    return figures, told


def seconds_of(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    return {way: {"seconds": summary([one["seconds"] for one in all_of]), "tokens": all_of[-1]["tokens"]} for way, all_of in found.items()}


LESS_IS_WORSE = ("token_ratio_vs_per_step", "time_ratio_vs_per_step")


def worse(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each figure the worse model's, to four places or, where it is tiny, four digits."""
    picked = {name: (min if name in LESS_IS_WORSE else max)(one[name] for one in found) for name in found[0]}
    return {name: float(f"{value:.4g}") if abs(value) < 0.1 else round(value, 4) for name, value in picked.items()}


def run(size: Size, console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    figures, told = [], {}
    with Progress(console=console) as progress:
        for name, shape, rounds, iterations in size.shapes:
            task = progress.add_task(name, total=7)
            with tempfile.TemporaryDirectory() as folder:
                tokens = size.long[1] * (size.long[2] + size.long[3])
                parameters = make_world(Path(folder), tasks=8, shape=shape, context=2 * tokens)
                found, beside = measure(Path(folder), size, rounds, iterations, lambda task=task: progress.advance(task))
            figures.append(found)
            told[name] = {"parameters": parameters, "shape": asdict(shape), "figures": found, **beside}
    return worse(figures), {"models": told}


def main() -> int:
    quick = "a tiny model and few episodes: shows that it works, not how fast anything is"
    return command.main("forecast", ABOUT, EXAMPLES, quick, PACKAGES, lambda is_quick, console: run(QUICK if is_quick else FULL, console))


if __name__ == "__main__":
    sys.exit(main())
