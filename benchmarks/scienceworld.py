"""One whole run of the preset `scienceworld`: SmolLM2-135M-Instruct, pretrained, on the official split's lifespan-* and find-* tasks.

    python benchmarks/scienceworld.py --json benchmarks/results/scienceworld.json
    python benchmarks/scienceworld.py --set rounds=3           # as in `ratchet run`
    python benchmarks/scienceworld.py --workspace runs/ID      # the figures of a run that has ended, which may have been resumed

Figures: run_s (wall seconds of the stages), warm_success and final_success on the official test variations, gain, gain_low, gain_high
(paired, 95 %), panel_n, champion_round, rounds; for each round confirm_R (success of its candidate on the confirm panel) and gain_R with
its bounds at the level that was spent, and where a critic was fitted critic_rank_correlation_R, of its value with the outcome on held-out
tasks. Beside the figures stand the stages' seconds, as `stages`, the decisions, as `decisions`, and how each candidate of a round did on
the select panel, as `candidates`. A workspace whose last stages have not ended gives what it has decided, without the figures of the test
variations, and says so on the terminal and as `state`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

from common import machine, write
from quickstart import PACKAGES, ROOT, demo, figures, stages


def rounds(workspace: Path) -> tuple[dict[str, float], dict[str, str], dict[str, dict[str, float]]]:
    """(figures, decisions, candidates) of each round that was decided."""
    found: dict[str, float] = {}
    decisions: dict[str, str] = {}
    candidates: dict[str, dict[str, float]] = {}
    for path in sorted((workspace / "data" / "rounds").glob("*/decision/decision.json")):
        decision = json.loads(path.read_text())
        if decision["comparison"] is None:
            continue  # the warm start's: it is the first champion
        number = str(decision["round"])
        decisions[number] = decision["event"]
        gain = decision["comparison"]["gain"]
        found |= {f"gain_{number}": gain["mean"], f"gain_{number}_low": gain["low"], f"gain_{number}_high": gain["high"]}
        found[f"confirm_{number}"] = decision["comparison"]["b"]["success"]["mean"]
        told = json.loads((workspace / "data" / "rounds" / number / "evaluation" / "evaluation.json").read_text())
        candidates[number] = {one["name"]: one["select"]["success"]["mean"] for one in told["candidates"]}
        critic = json.loads((workspace / "reports" / "metrics" / f"fit_critic-{number}.json").read_text())
        if "gate" in critic:
            found[f"critic_rank_correlation_{number}"] = critic["gate"]["rank_correlation"]
    return found | {"rounds": len(decisions)}, decisions, candidates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "scienceworld.json", help="where the result goes")
    parser.add_argument("--quick", action="store_true", help="the preset smoke in its place: every stage, numbers without meaning")
    which = parser.add_mutually_exclusive_group()  # a run that has ended has its settings
    which.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a difference to the preset; may be given again")
    which.add_argument("--workspace", type=Path, help="the workspace of a run of this preset, instead of a new one")
    arguments = parser.parse_args()
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        workspace = arguments.workspace or demo(Path(folder), "smoke" if arguments.quick else "scienceworld", arguments.set)[1]
        table = stages(workspace)
        found: dict[str, Any] = {"run_s": round(sum(table.values()), 1)}
        state = json.loads((workspace / "logs" / "run.json").read_text())["state"]
        if (workspace / "data" / "final" / "final.json").is_file():
            found |= figures(workspace)
        else:
            print(f"the run is {state} and has not played the test panel: its figures are left out")
        more, decisions, candidates = rounds(workspace)
    for name, value in [*table.items(), *found.items(), *more.items(), *decisions.items()]:
        print(f"{name:24} {value}")
    sets = [f" --set {shlex.quote(one)}" for one in arguments.set]
    command = "".join(["python benchmarks/scienceworld.py", " --quick" * arguments.quick, *sets, " --workspace RUN" * bool(arguments.workspace)])
    write(arguments.json, {**found, **more}, command, (*PACKAGES, "scienceworld"), before, state=state, stages=table, decisions=decisions, candidates=candidates)


if __name__ == "__main__":
    main()
