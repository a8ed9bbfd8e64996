"""Measures one GRPO iteration, and its parts, against TRL's trainer and Hugging Face `generate` on the same machine."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
from rich.console import Console
from rich.progress import Progress

from benchmarks.common import machine, write
from benchmarks.peers.figures import last_over_first_third, padding_share, ratio, summary
from benchmarks.peers.make import FIVE_MILLION, TINY, Shape, make_world
from benchmarks.peers.spec import Decoding, Iteration, Learning, in_process
from ratchet.errors import RatchetError

ABOUT = """\
Measures a whole GRPO iteration (rollouts and one optimiser step on all episodes) of Ratchet and of TRL's GRPOTrainer with an
environment_factory: the same 5M-parameter Llama from scratch, the same weights, tokenizer, tasks and world, the same number of turns
and of tokens. The world is ALFWorld's compiled engine, so wrapped that whatever the model writes becomes a command and no episode ends
before its last turn (benchmarks/peers/world.py); how TRL is brought to play it stands in benchmarks/peers/trl_side.py.

  iteration  seconds of TRL over ours, at 15 and at 45 turns, in processes that alternate; the median of several
  turns      seconds of our last turns over our first ones, rows and tokens a turn being equal, in one process
  decoding   tokens a second of our engine over those of `generate`, 32 rows in fp32, the better way of each: two players of a thread
             as in a stage or one process, dynamic or static cache
  padding    share of padding in what the linear layers of our update compute, episodes of 100 to 900 tokens
  memory     peak resident memory of our process and its two players over that of TRL's

Both sides first try their settings (bf16 autocast on and off, sizes of a micro-batch) on fewer episodes, and are measured with the
quickest; all settings and times stand beside the figures.
"""

EXAMPLES = """\
examples:
  python benchmarks/iteration.py                     the full run, about an hour on two cores
  python benchmarks/iteration.py --quick             a check that it works, about a minute
  python benchmarks/iteration.py --json mine.json    the result elsewhere
  python benchmarks/iteration.py --only decoding padding
"""

PACKAGES = ("torch", "transformers", "trl", "accelerate", "numpy")
PARTS = ("iteration", "decoding", "padding")
SIDES = ("trl_side", "ours")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    shape: Shape
    turns: int
    tasks: int
    samples: int
    long_turns: int
    long_tasks: int
    pairs: int  # of processes, theirs and ours, at the short length
    long_pairs: int
    try_tasks: int  # when settings are tried; 0 tries none
    decoding: tuple[int, int, int, int]  # rows, prompt, new tokens, rounds
    learning: tuple[int, tuple[int, int]]  # episodes, lengths
    apart: float  # more than this share between the tokens of both sides is no comparison; now and then a reply ends by itself


FULL = Size(FIVE_MILLION, 15, 8, 8, 45, 2, 3, 2, 2, (32, 64, 128, 7), (64, (100, 900)), 0.03)
QUICK = Size(TINY, 3, 2, 2, 5, 1, 1, 1, 0, (4, 8, 16, 2), (8, (100, 400)), 0.25)

CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "trl_side": [{"bf16": bf16, "batch": batch} for bf16 in (False, True) for batch in (4, 16)],
    "ours": [{"bf16": bf16, "batch_tokens": tokens} for bf16 in (False, True) for tokens in (2048, 4096)],
}


def seconds_of(result: dict[str, Any]) -> list[float]:
    return [one["seconds"] for one in result["iterations"]]


def best_settings(spec: Iteration, size: Size, advance: Callable[[], object]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """(the quickest settings of each side, what each one took) on `size.try_tasks` groups."""
    best: dict[str, dict[str, Any]] = {side: {} for side in SIDES}
    tried: dict[str, Any] = {side: [] for side in SIDES}
    if not size.try_tasks:
        return {"trl_side": {"batch": spec.samples}, "ours": {}}, tried
    for side in SIDES:
        for candidate in CANDIDATES[side]:
            result = in_process(side, replace(spec, tasks=size.try_tasks, **candidate))
            tried[side].append({**candidate, "seconds": round(statistics.median(seconds_of(result)), 2), "peak_mb": round(result["peak_mb"])})
            advance()
        quickest = min(range(len(CANDIDATES[side])), key=lambda index: tried[side][index]["seconds"])
        best[side] = CANDIDATES[side][quickest]
    return best, tried


def compare(spec: Iteration, best: dict[str, dict[str, Any]], pairs: int, apart: float, advance: Callable[[], object]) -> dict[str, Any]:
    """Both sides in processes that alternate, each side first in every second pair."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for number in range(pairs):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            found[side].append(in_process(side, replace(spec, **best[side])))
            advance()
    check_same_work(found, apart)
    return found


def check_same_work(found: dict[str, list[dict[str, Any]]], apart: float) -> None:
    """Raises RatchetError where the sides took different turns, or more than the share `apart` more or fewer tokens."""
    for name in ("turns", "tokens_read", "tokens_written"):
        ours, theirs = (mean_of(found[side], name) for side in ("ours", "trl_side"))
        if abs(ours - theirs) > (0.0 if name == "turns" else apart) * max(ours, theirs):
            raise RatchetError(f"{name}: {ours:.0f} an iteration in ours, {theirs:.0f} in TRL's; this is no comparison of the same work")


def mean_of(results: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.fmean(one[name] for result in results for one in result["iterations"])


def beside(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Times, their noise, and the work of both sides."""
    out: dict[str, Any] = {}
    for side, results in found.items():
        out[side] = {
            name: summary([one[name] for result in results for one in result["iterations"]])
            for name in ("seconds", "rollout_s", "update_s", "cpu_s")
        }
        out[side] |= {name: round(mean_of(results, name)) for name in ("turns", "tokens_read", "tokens_written")}
        out[side]["peak_mb"] = summary([result["peak_mb"] for result in results])
    out["ours"]["clock"] = found["ours"][-1]["iterations"][-1]["clock"]
    return out


def turn_seconds(spec: Iteration, rollouts: int) -> list[float]:
    """The median over some rollouts of each turn's seconds, so that one slow turn of one of them says nothing."""
    found = in_process("ours:turns", replace(spec, iterations=rollouts))["turn_s"]
    return [round(statistics.median(each), 4) for each in zip(*found, strict=True)]


def iteration(folder: str, size: Size, console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures of whole iterations, and what stands beside them."""
    spec = Iteration(folder, turns=size.turns, tasks=size.tasks, samples=size.samples)
    long = replace(spec, turns=size.long_turns, tasks=size.long_tasks)
    with Progress(console=console) as progress:

        def bar(name: str, total: int) -> Callable[[], object]:
            task = progress.add_task(name, total=total)
            return lambda: progress.advance(task)

        best, tried = best_settings(spec, size, bar("settings", len(SIDES) * len(CANDIDATES["ours"]) if size.try_tasks else 0))
        short_found = compare(spec, best, size.pairs, size.apart, bar(f"{size.turns} turns", 2 * size.pairs))
        turn_s = turn_seconds(spec, size.pairs)
        long_found = compare(long, best, size.long_pairs, size.apart, bar(f"{size.long_turns} turns", 2 * size.long_pairs))
    times = {side: [second for result in short_found[side] for second in seconds_of(result)] for side in SIDES}
    long_times = {side: [second for result in long_found[side] for second in seconds_of(result)] for side in SIDES}
    figures = {
        "iteration_speedup_vs_trl": ratio(times["trl_side"], times["ours"]),
        "iteration_speedup_vs_trl_45": ratio(long_times["trl_side"], long_times["ours"]),
        "turn_time_last_over_first_third": last_over_first_third(turn_s),
        "peak_memory_vs_trl": ratio([one["peak_mb"] for one in short_found["ours"]], [one["peak_mb"] for one in short_found["trl_side"]]),
    }
    told = {
        "settings": {side: asdict(replace(spec, folder="", **best[side])) for side in SIDES} | {"trl": trl_settings()},
        "settings_tried": tried,
        "iteration_15": beside(short_found),
        "iteration_45": beside(long_found) | {"episodes": long.episodes},
        "turn_s": turn_s,
    }
    return figures, told


def trl_settings() -> dict[str, Any]:
    """What TRL is given besides; imported late, because TRL takes seconds to load."""
    from benchmarks.peers.trl_side import SETTINGS

    return dict(SETTINGS)


def decoding(folder: str, size: Size, console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    with console.status("decoding"):
        rows, prompt, new, rounds = size.decoding
        rates = in_process("decode", Decoding(folder, rows, prompt, new, rounds))["tokens_per_s"]
    medians = {name: statistics.median(values) for name, values in rates.items()}
    exact = max(rate for name, rate in medians.items() if name.endswith("fp32"))  # bf16 weights are another model's
    figure = max(rate for name, rate in medians.items() if name.startswith("ours")) / exact
    told = {name: summary(values) for name, values in rates.items()}
    return {"decode_speedup_vs_generate": round(figure, 3)}, {"decode_tokens_per_s": told}


def padding(folder: str, size: Size, console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    with console.status("padding"):
        episodes, lengths = size.learning
        found = in_process("learner", Learning(folder, episodes, lengths))
    return {"update_padding_share": padding_share(found["computed"], found["real"])}, {"update": found}


def run(size: Size, parts: Sequence[str], console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    """All figures of `parts`, and what stands beside them."""
    figures: dict[str, float] = {}
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        with console.status("games, tokenizer, model"):
            told["parameters"] = make_world(Path(folder), tasks=3 * size.tasks, shape=size.shape, context=4096)
        for name, measured in (("decoding", decoding), ("padding", padding), ("iteration", iteration)):
            if name in parts:
                found, around = measured(folder, size, console)
                figures |= found
                told |= around
    return figures, told


def main() -> int:
    parser = argparse.ArgumentParser(description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/iteration.json"), metavar="PATH", help="where the result goes")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few episodes: shows that it works, not how fast anything is")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    options = parser.parse_args()
    console, before = Console(stderr=True), machine()
    try:
        figures, told = run(QUICK if options.quick else FULL, options.only, console)
    except RatchetError as error:
        console.print(str(error), markup=False)
        return 2
    command = "python benchmarks/iteration.py" + (" --quick" if options.quick else "")
    command += "" if options.only == PARTS else f" --only {' '.join(options.only)}"
    write(options.json, figures, command, PACKAGES, measured_on=before, **told)
    for name, value in figures.items():
        console.print(f"{name:36}{value:>12,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
