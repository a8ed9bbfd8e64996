"""Compares what the online methods learn on generated ALFWorld rooms, from one warm start and with the same environment steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
from benchmarks.evidence import command
from benchmarks.evidence.cells import Store
from benchmarks.evidence.pages import curves, difference, each_seed, label_of, mean_success, percent, points, table
from benchmarks.evidence.run import Found
from benchmarks.evidence.statistics import curve_of, steps_ratio

NAME = "alfworld_methods"
ABOUT = """\
Runs GRPO, CoPE (forecasting, K = 2) and success-filtered SFT with five seeds each, and every other estimator and term once, on generated
ALFWorld rooms with the quickstart's model. All begin from the same warm start and play the same number of episodes.

The protocol is written first: benchmarks/protocols/alfworld_methods.yaml says settings, seeds, panels and statistic, and its hash stands
in the result. Learning rate and weight are chosen on the select panel with an equal budget; the test panel is played by the chosen
settings alone. All runs are listed, whatever came out. No figure here is a score on the ALFWorld benchmark.

A cell is one method with one seed. Cells run --jobs at a time and are kept by the hash of their settings, code and seed in
benchmarks/results/cells, so that what is done is never run again, also not by another script. Killed at any point, kill -9 included,
the same command goes on where it was.

  grpo_success, cope_success, sft_success      success on the test panel, mean over seeds; seeds and panel_n say of how many
  cope_minus_grpo, sft_minus_grpo              paired difference with its 95 % interval (_low, _high)
  cope_steps_ratio                             environment steps GRPO needs for its final success over those CoPE needs for the same;
                                               where cope_reached is false it never does, and its whole budget counts
"""
EXAMPLES = """\
examples:
  python benchmarks/alfworld_methods.py                        all cells, about two hours on two cores
  python benchmarks/alfworld_methods.py --only grpo cope       these two and what tunes them
  python benchmarks/alfworld_methods.py --quick                shows that it works, a few minutes; results go into .ratchet/evidence
  python benchmarks/alfworld_methods.py --list                 the arms
"""
CLAIMS = (("cope", "cope"), ("success_sft", "sft"))


def figures(found: Found, store: Store, folder: Path) -> tuple[dict[str, Any], str]:
    told: dict[str, Any] = {}
    rows = []
    compared = [arm for arm in ("grpo", "cope", "success_sft") if arm in found.cells]
    if compared:
        told |= {"seeds": len(found.cells[compared[0]]), "panel_n": found.cells[compared[0]][0]["panel"]["n"]}
    warm = found.worlds["rooms"]["panels"][found.protocol.rules.final.panel]["success"]
    told["warm_success"] = round(warm, 4)
    if "grpo" in found.cells:
        told["grpo_success"] = mean_success(found, "grpo")
        for arm, name in CLAIMS:
            if arm in found.cells:
                gap = difference(found, store, "grpo", arm)
                told |= {f"{name}_success": mean_success(found, arm), **gap.figures(f"{name}_minus_grpo")}
                rows.append([found.protocol.rules.arms[arm].label, points(gap.mean, gap.low, gap.high), each_seed(gap)])
        if "cope" in found.cells:
            ratio, reached = steps_ratio(curve_of(found.cells["grpo"]), curve_of(found.cells["cope"]))
            told |= {"cope_steps_ratio": ratio, "cope_reached": reached}
    return told, page(found, rows, warm, folder)


def page(found: Found, rows: list[list[Any]], warm: float, folder: Path) -> str:
    arms = found.protocol.rules.arms
    success = [
        [label_of(found, arm), len(results), percent(mean_success(found, arm)), *spent(results)]
        for arm, results in found.cells.items()
    ]
    parts = [
        "# Online methods on generated ALFWorld rooms\n",
        f"{found.protocol.rules.question} {found.protocol.rules.statistic}\n",
        table(["method", "seeds", "success on test", "environment steps", "generated tokens"], [["warm start", "", percent(warm), "", ""], *success]),
        "A smoke run has one seed: it shows that the method runs, and nothing about which is better.\n",
    ]
    if rows:
        parts.append(table(["against GRPO", "points, 95 % interval", "each seed"], rows))
    plotted = [arm for arm in found.cells if not arms[arm].smoke]
    return "\n".join(parts + curves(folder, NAME, found, plotted, "Generated ALFWorld rooms"))


def spent(results: list[dict[str, Any]]) -> list[str]:
    """Environment steps and generated tokens of a cell, the mean over seeds."""
    curve = curve_of(results)
    return [f"{curve.env_steps[-1]:,.0f}", f"{curve.generated_tokens[-1]:,.0f}"]


def main() -> int:
    return command.main(NAME, ABOUT, EXAMPLES, figures, {})


if __name__ == "__main__":
    sys.exit(main())
