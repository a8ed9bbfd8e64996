"""Forecasts, meter and critic, each on or off: eight loops from one warm start, and what each factor adds."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
from benchmarks.evidence import command
from benchmarks.evidence.cells import Store
from benchmarks.evidence.pages import difference, gates, mean_success, percent, points, table
from benchmarks.evidence.run import Found
from benchmarks.evidence.statistics import curve_of

NAME = "factorial"
NONE, ALL = "none", "fmc"
FACTORS = {"f": "forecasts", "m": "meter", "c": "critic"}
ABOUT = """\
The 2 x 2 x 2 factorial of the three methods on generated ALFWorld rooms (no ALFWorld score): two rounds of GRPO with and without forecasts,
a progress meter, and a critic with its offline update, at about the same number of episodes. GRPO and the loop of all three have five
seeds; the others one, to begin with: raise `seeds` in benchmarks/protocols/factorial.yaml and run it again, and only the new cells are run.
Killed at any point, it goes on where it was.

  none_success, f_success, …, fmc_success   success on the test panel, mean over the arm's seeds
  all_minus_grpo                            fmc − none, paired, with its 95 % interval (_low, _high), over all_seeds seeds
  forecasts_effect, meter_effect, critic_effect   mean over the settings of the other two factors of the difference that one makes, over the
                                            first `seeds` seeds, which all arms have; a smoke run with one seed claims none
"""
EXAMPLES = """\
examples:
  python benchmarks/factorial.py             all, some eighty minutes on two cores
  python benchmarks/factorial.py --quick     shows that it works; results go into .ratchet/evidence
  python benchmarks/factorial.py --list      the arms
"""


def name_of(on: dict[str, bool]) -> str:
    return "".join(letter for letter in FACTORS if on[letter]) or NONE


def figures(found: Found, store: Store, folder: Path) -> tuple[dict[str, Any], str]:
    told: dict[str, Any] = {f"{arm}_success": mean_success(found, arm) for arm in found.cells}
    told["seeds"] = min(len(results) for results in found.cells.values())
    if {NONE, ALL} <= found.cells.keys():
        gap = difference(found, store, NONE, ALL)
        told |= {"all_seeds": len(gap.by_seed), **gap.figures("all_minus_grpo")}
    for letter, factor in FACTORS.items():
        others = [one for one in FACTORS if one != letter]
        gaps = []
        for values in product((False, True), repeat=2):
            on = dict(zip(others, values, strict=True))
            a, b = (name_of({**on, letter: value}) for value in (False, True))
            if a in found.cells and b in found.cells:
                gaps.append(found.marks(b)[: told["seeds"]].mean() - found.marks(a)[: told["seeds"]].mean())
        if len(gaps) == 4:
            told[f"{factor}_effect"] = round(float(sum(gaps)) / 4, 4)
    return told, page(found, told)


def page(found: Found, told: dict[str, Any]) -> str:
    rows = []
    for arm, results in found.cells.items():
        curve = curve_of(results)
        marks = ["x" if letter in arm and arm != NONE else "" for letter in FACTORS]
        rows.append([*marks, len(results), percent(mean_success(found, arm)), f"{curve.env_steps[-1]:,.0f}", f"{curve.generated_tokens[-1]:,.0f}"])
    effects = [[factor, f"{100 * told[f'{factor}_effect']:+.1f}"] for factor in FACTORS.values() if f"{factor}_effect" in told]
    both = "all_minus_grpo"
    parts = [
        "# Forecasts, meter and critic: a factorial\n",
        f"{found.protocol.rules.question} {found.protocol.rules.statistic}\n",
        table([*FACTORS.values(), "seeds", "success on test", "environment steps", "generated tokens"], rows),
    ]
    if both in told:
        gap = points(told[both], told[f"{both}_low"], told[f"{both}_high"])
        parts.append(f"All three from GRPO, over {told['all_seeds']} seeds: {gap} points.\n")
    if effects:
        parts.append(table(["factor", f"points, {told['seeds']} seeds"], effects))
    return "\n".join(parts + gates(found))


def main() -> int:
    return command.main(NAME, ABOUT, EXAMPLES, figures, {})


if __name__ == "__main__":
    sys.exit(main())
