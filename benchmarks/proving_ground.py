"""Claims about methods on the proving ground, where causes can be isolated: filters, normalisation, refusal, replay."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
import numpy as np

from benchmarks.evidence import command
from benchmarks.evidence.cells import Store
from benchmarks.evidence.pages import curves, mean_success, percent, points, table
from benchmarks.evidence.run import Found
from benchmarks.evidence.statistics import Difference, paired, spread_of
from ratchet.envs.proving_ground.rules import IDLE

NAME = "proving_ground"
ABOUT = """\
Four questions about learning from forecasts of one's own successes, each asked where its cause can be isolated, with eight seeds. The
proving ground (docs/proving-ground.md) is a small text world made for this: a test instrument, and no benchmark of anything.

  filter         forecasting successes alone against forecasting all episodes
  normalisation  the loss of a group as a mean over its successes against their sum over the group's size
  refusal        where doing nothing is right in 38 % of the tasks, which are far easier than the rest: how often is nothing done
                 where something has to be done
  replay         where tasks return and many groups have no success: earlier successes of the same task as targets

The protocol is written first: benchmarks/protocols/proving_ground.yaml; its hash stands in the result. All runs are listed, whatever came
out. Cells are kept in benchmarks/results/cells and resumed after any kill.

  grpo_success, filtered_success, unfiltered_success   success on the test panel, mean over seeds
  unfiltered_minus_filtered                            paired difference with its 95 % interval (_low, _high), and so below
  grad_p99_over_median, grad_p99_over_median_sum       99th percentile over median of gradient norms, as a mean and as a sum over
                                                       successes; normalised_success, sum_success beside them
  refusal_grpo, refusal_wins, refusal_mixed            share of tasks that need action in which nothing is done
  refusal_mixed_minus_wins                             paired difference
  replay_gain                                          success with replay minus without, paired
"""
EXAMPLES = """\
examples:
  python benchmarks/proving_ground.py                                       all cells, about an hour on two cores
  python benchmarks/proving_ground.py --only refusing_wins refusing_mixed   one question
  python benchmarks/proving_ground.py --quick                               shows that it works; results go into .ratchet/evidence
  python benchmarks/proving_ground.py --list                                the arms
"""
MARKS = {"refused": "benchmarks.evidence.marks:refused"}


def figures(found: Found, store: Store, folder: Path) -> tuple[dict[str, Any], str]:
    told: dict[str, Any] = {"seeds": min(len(results) for results in found.cells.values())}
    told |= {"panel_n": next(iter(found.cells.values()))[0]["panel"]["n"]}
    gaps: list[list[Any]] = []

    def compared(name: str, a: str, b: str, mark: str = "solved", where: str | None = None) -> None:
        if a in found.cells and b in found.cells:
            gap = difference(found, store, a, b, mark, where)
            told.update(gap.figures(name))
            gaps.append([name.replace("_", " "), points(gap.mean, gap.low, gap.high), ", ".join(f"{100 * one:+.1f}" for one in gap.by_seed)])

    for name, arm in (("grpo", "grpo"), ("filtered", "cope"), ("unfiltered", "unfiltered"), ("normalised", "cope"), ("sum", "unnormalised")):
        if arm in found.cells:
            told[f"{name}_success"] = mean_success(found, arm)
    compared("filtered_minus_grpo", "grpo", "cope")
    compared("unfiltered_minus_filtered", "cope", "unfiltered")
    for name, arm in (("grad_p99_over_median", "cope"), ("grad_p99_over_median_sum", "unnormalised")):
        if arm in found.cells:
            told[name] = spread_of([point["grad_norm"] for one in found.cells[arm] for point in one["curve"]])
    compared("sum_minus_normalised", "cope", "unnormalised")
    for name in ("grpo", "wins", "mixed"):
        if (arm := f"refusing_{name}") in found.cells:
            told |= {f"refusal_{name}": refusal(found, store, arm), f"refusal_{name}_success": mean_success(found, arm)}
    compared("refusal_mixed_minus_wins", "refusing_wins", "refusing_mixed", "refused", IDLE)
    compared("refusal_wins_minus_grpo", "refusing_grpo", "refusing_wins", "refused", IDLE)
    compared("replay_gain", "scarce_cope", "scarce_replay")
    return told, page(found, store, gaps, folder)


def needs_action(found: Found, store: Store, arm: str) -> np.ndarray:
    strata, _ = store.panel(found.cells[arm][0]["panel"]["hash"])
    return strata != IDLE


def refusal(found: Found, store: Store, arm: str) -> float:
    return round(float(found.marks(arm, "refused")[:, needs_action(found, store, arm)].mean()), 4)


def difference(found: Found, store: Store, a: str, b: str, mark: str, without: str | None) -> Difference:
    """b − a in a mark, on the tasks of all strata but `without`."""
    strata, clusters = store.panel(found.cells[a][0]["panel"]["hash"])
    kept = strata != without
    return paired(found.marks(a, mark)[:, kept], found.marks(b, mark)[:, kept], clusters[kept])


def page(found: Found, store: Store, gaps: list[list[Any]], folder: Path) -> str:
    arms = found.protocol.rules.arms
    rows = []
    for world, told in found.worlds.items():
        rows.append([f"warm start ({world})", "", percent(told["panels"][found.protocol.rules.final.panel]["success"]), "", ""])
    for arm, results in found.cells.items():
        acting = needs_action(found, store, arm)
        refused = percent(refusal(found, store, arm))
        rows.append([arms[arm].label, len(results), percent(mean_success(found, arm)), percent(mean_success(found, arm, acting)), refused])
    parts = [
        "# Claims on the proving ground\n",
        f"{found.protocol.rules.question} {found.protocol.rules.statistic}\n",
        "The proving ground is a test instrument: these numbers say something about the methods' mechanisms, and nothing about any benchmark.\n",
        table(["arm", "seeds", "success on test", "where action is needed", "refused there"], rows),
    ]
    if gaps:
        parts.append(table(["difference", "points, 95 % interval", "each seed"], gaps))
    return "\n".join(parts + curves(folder, NAME, found, ("grpo", "cope", "unfiltered", "unnormalised"), "Proving ground"))


def main() -> int:
    return command.main(NAME, ABOUT, EXAMPLES, figures, MARKS)


if __name__ == "__main__":
    sys.exit(main())
