"""Compares rounds that evolve the actor offline, with a critic (Q-Evolve) and without, and the full loop, against GRPO."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
import numpy as np

from benchmarks.evidence import command
from benchmarks.evidence.cells import Store, bits
from benchmarks.evidence.pages import curves, difference, each_seed, gates, label_of, mean_success, percent, points, table
from benchmarks.evidence.rounds import stopped
from benchmarks.evidence.run import Found
from benchmarks.evidence.statistics import curve_of, steps_ratio

NAME = "evolve_methods"
ABOUT = """\
Runs Q-Evolve (a round's buffer, a critic by weighted IQL, BPPO on its advantages), imitation of experts and own successes (RFT), GRPO and
the full loop of forecasts, meter and critic with five seeds each on generated ALFWorld rooms; AWR, ETO, the critic as a reranker and the
ablations of the critic once; and Q-Evolve, RFT and GRPO with eight seeds on the proving ground. All begin from the same warm start and play
the same number of episodes; environment steps and generated tokens are both printed.

The protocol is written first: benchmarks/protocols/evolve_methods.yaml; its hash stands in the result. Settings are chosen on the select
panel with an equal budget, the test panel is played by the chosen ones alone. All runs are listed, whatever came out. No figure here is a
score on the ALFWorld benchmark. Cells are kept in benchmarks/results/cells, and GRPO's of alfworld_methods.py serve here too. Killed at
any point, the same command goes on where it was.

  bc_success, evolve_success, …          success on the test panel, mean over seeds; bc is the warm start
  evolve_minus_bc, evolve_minus_grpo     paired differences with their 95 % intervals (_low, _high); so evolve_minus_rft, rft_minus_bc,
                                         all_minus_grpo, and ground_evolve_minus_bc, ground_evolve_minus_grpo on the proving ground
  seeds, ground_seeds                    of how many
  samples_ratio_vs_grpo                  environment steps GRPO needs for its final success over those Q-Evolve needs for the same; where
                                         samples_reached is false it never does, and its whole budget counts
  stop_round, best_round                 where the stop rule would have halted a run of five rounds, and which was the best on select
"""
EXAMPLES = """\
examples:
  python benchmarks/evolve_methods.py                              all cells, some six hours on two cores
  python benchmarks/evolve_methods.py --only grpo evolve           these two and what tunes them
  python benchmarks/evolve_methods.py --quick                      shows that it works; results go into .ratchet/evidence
  python benchmarks/evolve_methods.py --list                       the arms
"""
WORLDS = {"": "rooms", "ground_": "ground"}
AGAINST_BC = ("evolve", "rft")
AGAINST = {"grpo": ("evolve", "rft", "all"), "rft": ("evolve",)}


def figures(found: Found, store: Store, folder: Path) -> tuple[dict[str, Any], str]:
    told: dict[str, Any] = {}
    gaps: list[list[Any]] = []
    for prefix, world in WORLDS.items():
        mine = [arm for arm in found.cells if found.protocol.rules.arms[arm].world == world]
        if not mine:
            continue
        claims = [arm for arm in mine if not found.protocol.rules.arms[arm].smoke]
        if claims:
            told[f"{prefix}seeds"] = min(len(found.cells[arm]) for arm in claims)
        told[f"{prefix}panel_n"] = found.cells[mine[0]][0]["panel"]["n"]
        warm = found.worlds[world]["panels"][found.protocol.rules.final.panel]
        told[f"{prefix}bc_success"] = round(warm["success"], 4)
        told |= {f"{arm}_success": mean_success(found, arm) for arm in mine}
        for name in AGAINST_BC:
            if (arm := prefix + name) in found.cells:
                solved = found.marks(arm)
                _compare(found, store, told, gaps, f"{arm}_minus_bc", np.tile(bits(warm["marks"]["solved"]), (len(solved), 1)), arm)
        for base, names in AGAINST.items():
            for name in names:
                if (arm := prefix + name) in found.cells and (other := prefix + base) in found.cells:
                    _compare(found, store, told, gaps, f"{arm}_minus_{base}", other, arm)
        if f"{prefix}evolve" in found.cells and f"{prefix}grpo" in found.cells:
            ratio, reached = steps_ratio(curve_of(found.cells[f"{prefix}grpo"]), curve_of(found.cells[f"{prefix}evolve"]))
            told |= {f"{prefix}samples_ratio_vs_grpo": ratio, f"{prefix}samples_reached": reached}
    if "long" in found.cells:
        told["stop_round"], told["best_round"] = stopped(found.cells["long"][0]["curve"], patience=2)
        told["stops_within_a_round"] = abs(told["stop_round"] - told["best_round"]) <= 1
    return told, page(found, told, gaps, folder)


def _compare(found: Found, store: Store, told: dict[str, Any], gaps: list[list[Any]], name: str, before: str | np.ndarray, arm: str) -> None:
    gap = difference(found, store, before, arm)
    told |= gap.figures(name)
    gaps.append([name.replace("_", " "), points(gap.mean, gap.low, gap.high), each_seed(gap)])


def page(found: Found, told: dict[str, Any], gaps: list[list[Any]], folder: Path) -> str:
    rows: list[list[Any]] = [
        [f"warm start ({world}; BC)", "", percent(told[f"{prefix}bc_success"]), "", ""] for prefix, world in WORLDS.items() if f"{prefix}bc_success" in told
    ]
    for arm, results in found.cells.items():
        curve = curve_of(results)
        rows.append([label_of(found, arm), len(results), percent(mean_success(found, arm)), f"{curve.env_steps[-1]:,.0f}", f"{curve.generated_tokens[-1]:,.0f}"])
    parts = [
        "# Rounds with a critic\n",
        f"{found.protocol.rules.question} {found.protocol.rules.statistic}\n",
        table(["method", "seeds", "success on test", "environment steps", "generated tokens"], rows),
        "A smoke run has one seed: it shows that the method runs, and nothing about which is better.\n",
    ]
    if gaps:
        parts.append(table(["difference", "points, 95 % interval", "each seed"], gaps))
    parts += gates(found)
    if "stop_round" in told:
        parts.append(f"Of five rounds the stop rule halts after round {told['stop_round']}; the best on select is round {told['best_round']}.\n")
    return "\n".join(parts + curves(folder, NAME, found, ("grpo", "evolve", "rft", "all"), "Generated ALFWorld rooms"))


def main() -> int:
    return command.main(NAME, ABOUT, EXAMPLES, figures, {})


if __name__ == "__main__":
    sys.exit(main())
