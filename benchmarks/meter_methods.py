"""Compares credit by a progress meter with GRPO, and one meter with another, from one warm start and with the same environment steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
import numpy as np

from benchmarks.evidence import command
from benchmarks.evidence.cells import Cell, Store
from benchmarks.evidence.meters import guided, home_of
from benchmarks.evidence.pages import curves, difference, each_seed, gates, label_of, mean_success, percent, points, table
from benchmarks.evidence.run import SCRATCH, Found
from benchmarks.evidence.statistics import curve_of
from ratchet.settings import parse

NAME = "meter_methods"
ABOUT = """\
Runs GRPO and credit by a progress meter (DeltaTTG), as the paper writes its Δ and as a temporal difference, with five seeds each on generated
ALFWorld rooms and with eight on the proving ground; untrained and differently trained meters, other targets, costs and shares once. All
begin from the same warm start and play the same number of episodes; generated tokens are printed beside environment steps.

The protocol is written first: benchmarks/protocols/meter_methods.yaml; its hash stands in the result. Settings are chosen on the select
panel with an equal budget, the test panel is played by the chosen ones alone. All runs are listed, whatever came out. No figure here is a
score on the ALFWorld benchmark. Cells are kept in benchmarks/results/cells, and GRPO's of the other scripts serve here too. Killed at any
point, the same command goes on where it was.

  ttg_paper_minus_grpo, ttg_td_minus_grpo    paired differences with their 95 % intervals (_low, _high); ground_… on the proving ground
  seeds, ground_seeds, panel_n               of how many
  step_accuracy_ttg, _steps, _score          balanced accuracy of Δ's direction against the shortest plan (rooms); ground_… against exact values
  meter_transfer_rooms, _science, _actor     one seed: a meter of larger rooms, of ScienceWorld, and the rooms' own for a smaller actor, each minus
                                             GRPO with that seed, with intervals over scenes alone
  c_touched_share                            share of the rollouts' successes that hold a transition touched by C
  natural_success, guided_success            of the warm start by itself and guided, 4 candidates; guided_minus_natural (_low, _high), and the
                                             environment steps of both
"""
EXAMPLES = """\
examples:
  python benchmarks/meter_methods.py                            all cells, some four hours on two cores
  python benchmarks/meter_methods.py --only grpo paper td       these three and what tunes them
  python benchmarks/meter_methods.py --quick                    shows that it works; results go into .ratchet/evidence
  python benchmarks/meter_methods.py --list                     the arms
"""
WORLDS = {"": "rooms", "ground_": "ground"}
TRANSFERS = {"rooms": ("grpo", "other_rooms"), "science": ("grpo", "other_science"), "actor": ("little_grpo", "little_shared")}
TARGETS = {"ttg": "paper", "steps": "steps", "score": "score"}
GUIDED_TASKS, CANDIDATES = 128, 4


def figures(found: Found, store: Store, folder: Path) -> tuple[dict[str, Any], str]:
    told: dict[str, Any] = {}
    gaps: list[list[Any]] = []
    for prefix, world in WORLDS.items():
        mine = [arm for arm in found.cells if found.protocol.rules.arms[arm].world == world]
        seeds = [len(found.cells[arm]) for arm in mine if not found.protocol.rules.arms[arm].smoke]
        if not mine:
            continue
        if seeds:
            told[f"{prefix}seeds"] = min(seeds)
        told[f"{prefix}panel_n"] = found.cells[mine[0]][0]["panel"]["n"]
        warm = found.worlds[world]["panels"][found.protocol.rules.final.panel]
        told[f"{prefix}warm_success"] = round(warm["success"], 4)
        told |= {f"{arm}_success": mean_success(found, arm) for arm in mine}
        for name in ("paper", "td"):
            if (arm := prefix + name) in found.cells and f"{prefix}grpo" in found.cells:
                gap = difference(found, store, f"{prefix}grpo", arm)
                told |= gap.figures(f"{prefix}ttg_{name}_minus_grpo")
                gaps.append([found.protocol.rules.arms[arm].label, points(gap.mean, gap.low, gap.high), each_seed(gap)])
        for target, name in TARGETS.items():
            if (arm := prefix + name) in found.cells and "meter_gate_sign" in (first := found.cells[arm][0]["curve"][0]):
                told[f"{prefix}step_accuracy_{target}"] = round(first["meter_gate_sign"], 4)
    for name, (without, arm) in TRANSFERS.items():
        if without in found.cells and arm in found.cells:
            gap = difference(found, store, without, arm)
            told |= gap.figures(f"meter_transfer_{name}")
            gaps.append([f"{found.protocol.rules.arms[arm].label} (one seed)", points(gap.mean, gap.low, gap.high), ""])
    touched = [point["c_touched_share"] for arm in ("paper", "td") for one in found.cells.get(arm, ()) for point in one["curve"] if "c_touched_share" in point]
    if touched:
        told["c_touched_share"] = round(float(np.mean(touched)), 4)
    told |= _guided(found)
    return told, page(found, told, gaps, folder)


def _guided(found: Found) -> dict[str, Any]:
    """The warm start of the rooms with the meter of the arm `paper`."""
    if "paper" not in found.cells:
        return {}
    protocol = found.protocol
    cell = Cell("paper", protocol.world("paper"), protocol.differences("paper", found.choices["paper"]), 1, protocol.rules.final.panel)
    home = home_of(SCRATCH / "worlds" / cell.world_key, parse(cell.params))
    if not (home / "models" / "rounds" / "1" / "meter" / "meter.json").is_file():
        return {}  # the cells came from the store, and their meter is not on this machine
    result = guided(home, protocol.rules.final.panel, GUIDED_TASKS, CANDIDATES)
    gain = result["guided_minus_natural"]
    return {
        "natural_success": round(result["natural"]["success"]["mean"], 4),
        "guided_success": round(result["guided"]["success"]["mean"], 4),
        "guided_minus_natural": round(gain["mean"], 4),
        "guided_minus_natural_low": round(gain["low"], 4),
        "guided_minus_natural_high": round(gain["high"], 4),
        **{name: result[name] for name in ("natural_env_steps", "guided_env_steps", "replayed_env_steps")},
    }


def page(found: Found, told: dict[str, Any], gaps: list[list[Any]], folder: Path) -> str:
    rows: list[list[Any]] = []
    for arm, results in found.cells.items():
        curve = curve_of(results)
        rows.append([label_of(found, arm), len(results), percent(mean_success(found, arm)), f"{curve.env_steps[-1]:,.0f}", f"{curve.generated_tokens[-1]:,.0f}"])
    parts = [
        "# Credit by a progress meter\n",
        f"{found.protocol.rules.question} {found.protocol.rules.statistic}\n",
        table(["method", "seeds", "success on test", "environment steps", "generated tokens"], rows),
        "A smoke run has one seed: it shows that the method runs, and nothing about which is better.\n",
    ]
    if gaps:
        parts.append(table(["against GRPO", "points, 95 % interval", "each seed"], gaps))
    parts += gates(found)
    if "guided_success" in told:
        low, high = told["guided_minus_natural_low"], told["guided_minus_natural_high"]
        parts.append(
            f"Guidance: {percent(told['natural_success'])} by itself, {percent(told['guided_success'])} guided, "
            f"{points(told['guided_minus_natural'], low, high)}; {told['natural_env_steps']:,} and {told['guided_env_steps']:,} environment steps.\n"
        )
    return "\n".join(parts + curves(folder, NAME, found, ("grpo", "paper", "td"), "Generated ALFWorld rooms"))


def main() -> int:
    return command.main(NAME, ABOUT, EXAMPLES, figures, {})


if __name__ == "__main__":
    sys.exit(main())
