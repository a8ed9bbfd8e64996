"""The command line of a script of evidence."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.common import machine, write
from benchmarks.evidence.cells import Store
from benchmarks.evidence.pages import all_runs
from benchmarks.evidence.protocol import Protocol, read_protocol
from benchmarks.evidence.run import SCRATCH, Found, Runner
from benchmarks.evidence.workspaces import CHECKOUT
from ratchet.errors import RatchetError
from ratchet.processor import cores

PACKAGES = ("torch", "transformers", "accelerate", "numpy")
RESULTS = CHECKOUT / "benchmarks" / "results"
PROTOCOLS = CHECKOUT / "benchmarks" / "protocols"
Told = tuple[dict[str, Any], str]
"""(figures, a page in Markdown)."""


def main(name: str, about: str, examples: str, figures: Callable[[Found, Store, Path], Told], marks: Mapping[str, str]) -> int:
    """Runs benchmarks/NAME.py: `figures(found, store, folder)` computes what is told and may write plots into `folder`.

    With `--only` whatever of the figures the chosen arms allow. Returns the exit code: 2 with one message where something cannot be.
    """
    parser = argparse.ArgumentParser(description=about, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = f"where result, page and plots go (benchmarks/results/{name}.json; with --quick or --only into .ratchet/evidence)"
    parser.add_argument("--json", type=Path, metavar="PATH", help=where)
    parser.add_argument("--quick", action="store_true", help="few seeds, small sizes: shows that it works; the numbers mean nothing")
    parser.add_argument("--only", nargs="+", metavar="ARM", help="run these arms' cells (and what they depend on); --list names them")
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N", help="cells at a time, one core each (%(default)s)")
    parser.add_argument("--reuse", action="store_true", help="take done cells of the same settings and seed that another version of the code made")
    parser.add_argument("--list", action="store_true", help="print the protocol's arms and what is done, and stop")
    options = parser.parse_args()
    console, before = Console(stderr=True), machine()
    try:
        protocol = read_protocol(PROTOCOLS / f"{name}.yaml", quick=options.quick)
        arms = chosen(protocol, options.only)
        store = Store((SCRATCH / "quick" if options.quick else RESULTS) / "cells", any_code=options.reuse)
        path = options.json or (SCRATCH / "pages" if options.quick or options.only else RESULTS) / f"{name}.json"
        if options.list:
            for arm, one in protocol.rules.arms.items():
                console.print(f"{arm:24}{one.seeds:>3} seeds  {len(one.tune):>2} settings to choose from  {one.label}")
            return 0
        found = _run(protocol, arms, store, options.jobs, dict(marks), console)
        told, page = figures(found, store, path.parent)
    except RatchetError as error:
        console.print(str(error), markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from what is done")
        return 130
    command = f"python benchmarks/{name}.py" + (" --quick" if options.quick else "") + (f" --only {' '.join(arms)}" if options.only else "")
    write(path, told, command, PACKAGES, measured_on=before, **beside(found))
    (path.parent / f"{path.stem}.md").write_text(f"{page}\n## All runs\n\n{all_runs(found)}", encoding="utf-8")
    for figure, value in told.items():
        console.print(f"{figure:44}{value!s:>12}", highlight=False)
    return 0


def chosen(protocol: Protocol, only: list[str] | None) -> list[str]:
    """The arms to run. Raises RatchetError for one that there is not."""
    known = protocol.rules.arms
    for arm in only or ():
        if arm not in known:
            raise RatchetError(f"--only {arm}: no such arm; they are {', '.join(known)}")
    return [arm for arm in known if only is None or arm in only]


def _run(protocol: Protocol, arms: list[str], store: Store, jobs: int, marks: dict[str, str], console: Console) -> Found:
    rules = protocol.rules
    deciding = {rules.arms[arm].like or arm for arm in arms}
    total = sum(len(rules.arms[arm].tune) * len(rules.tuning.seeds) for arm in deciding) + sum(rules.arms[arm].seeds for arm in arms)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("cells", total=total)
        return Runner(protocol, store, jobs=jobs, marks=marks, advance=lambda: progress.advance(bar)).run(arms)


def beside(found: Found) -> dict[str, Any]:
    """What stands beside the figures: the protocol, each choice and how it was made, and each cell that was run."""
    rules = found.protocol.rules
    return {
        "protocol": {"file": f"benchmarks/protocols/{found.protocol.name}.yaml", "hash": found.protocol.hash, "quick": found.protocol.is_quick},
        "question": rules.question,
        "statistic": rules.statistic,
        "worlds": found.worlds,
        "tuned": found.tuned,
        "choices": found.choices,
        "runs": {
            arm: [
                {
                    **{key: one[key] for key in ("seed", "key", "code", "seconds")},
                    "success": round(one["panel"]["success"], 4),
                    "panel_hash": one["panel"]["hash"],
                    "env_steps": sum(point["env_steps"] for point in one["curve"]),
                    "generated_tokens": sum(point["generated_tokens"] for point in one["curve"]),
                }
                for one in results
            ]
            for arm, results in found.cells.items()
        },
    }
