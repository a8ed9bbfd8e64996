"""Measures what GRPO learns in Ratchet and in TRL from one warm start: success on held-out games after the same number of iterations."""

from __future__ import annotations

import statistics
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
from benchmarks.peers.figures import mean_interval
from benchmarks.peers.spec import Evaluation, Training, WarmStart, in_process

ABOUT = """\
Trains a Llama of 1.1M parameters from scratch on an expert's episodes in small generated ALFWorld rooms, and then lets Ratchet and TRL's
GRPOTrainer improve it by GRPO, from the same weights, on the same tasks in the same order, with the same optimiser, learning rate, clip,
groups and number of optimiser steps. Both models are then evaluated by the same code, greedily, on the same held-out games.

The figure is the mean over seeds of the difference in success, with a 95 % bootstrap interval over seeds. It is no claim that one learns
better: it shows that being quicker is not paid for with learning less.
"""

EXAMPLES = """\
examples:
  python benchmarks/learning_vs_trl.py                     the full run, about twenty minutes on two cores
  python benchmarks/learning_vs_trl.py --quick             a check that it works
  python benchmarks/learning_vs_trl.py --json mine.json    the result elsewhere
"""

PACKAGES = ("torch", "transformers", "trl", "accelerate", "numpy")
SIDES = {"ours": "learning:train", "trl": "trl_side:train"}


@dataclass(frozen=True)
class Size:
    """How much is learned."""

    seeds: int
    games: int  # of the warm start and of GRPO
    held_out: int
    tokens: int  # of the warm start
    turns: int
    tasks: int
    samples: int
    iterations: int
    rooms: int = 4
    lr: float = 3e-4


FULL = Size(seeds=5, games=2000, held_out=512, tokens=500_000, turns=12, tasks=8, samples=8, iterations=10)
QUICK = Size(seeds=2, games=150, held_out=16, tokens=6_000, turns=4, tasks=2, samples=4, iterations=1)


def training(folder: str, size: Size, seed: int, out: str) -> Training:
    return Training(
        folder=folder,
        turns=size.turns,
        tasks=size.tasks,
        samples=size.samples,
        iterations=size.iterations,
        batch=size.samples // 2,
        seed=seed,
        lr=size.lr,
        out=out,
    )


def run(size: Size, console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures, and every seed's success."""
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:

        def bar(name: str, total: int) -> Callable[[], object]:
            task = progress.add_task(name, total=total)
            return lambda: progress.advance(task)

        advance = bar("warm start", 1)
        warm = in_process("learning:warm_start", WarmStart(folder, size.games, size.held_out, size.rooms, size.tokens, size.turns))
        warm |= in_process("learning:evaluate", Evaluation(folder, "warm", size.turns))
        advance()
        advance = bar("seeds", size.seeds * len(SIDES))
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}
        for seed in range(1, size.seeds + 1):
            for name in SIDES if seed % 2 else [*SIDES][::-1]:
                out = f"{name}-{seed}"
                trained = in_process(SIDES[name], training(folder, size, seed, out))
                success = in_process("learning:evaluate", Evaluation(folder, out, size.turns))["success"]
                found[name].append({"seed": seed, "success": success, "rollout_success": trained["success"], "seconds": trained["seconds"]})
                advance()
    success = {name: [one["success"] for one in seeds] for name, seeds in found.items()}
    mean, low, high = mean_interval([ours - theirs for ours, theirs in zip(success["ours"], success["trl"], strict=True)])
    figures = {"success_minus_trl": mean, "success_minus_trl_low": low, "success_minus_trl_high": high}
    told = {
        "warm_start": warm,
        "success": {name: round(statistics.fmean(values), 4) for name, values in success.items()},
        "seeds": found,
        "size": asdict(size),
    }
    console.print(f"warm start {warm['success']:.3f}, ours {told['success']['ours']:.3f}, TRL {told['success']['trl']:.3f}")
    return figures, told


def main() -> int:
    quick = "two seeds, one iteration: shows that it works, nothing is learned"
    return command.main("learning_vs_trl", ABOUT, EXAMPLES, quick, PACKAGES, lambda is_quick, console: run(QUICK if is_quick else FULL, console))


if __name__ == "__main__":
    sys.exit(main())
