"""The command line of a benchmark that has no options of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.common import machine, write
from ratchet.errors import RatchetError

Measured = tuple[dict[str, float], dict[str, Any]]


def main(name: str, about: str, examples: str, quick: str, packages: tuple[str, ...], run: Callable[[bool, Console], Measured]) -> int:
    """Runs benchmarks/NAME.py: `run(is_quick, console)` returns the figures and what stands beside them. `quick` says what --quick shows.

    Returns the exit code: 2 with one message where `run` raised RatchetError, and then nothing is written.
    """
    parser = argparse.ArgumentParser(description=about, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path(f"benchmarks/results/{name}.json"), metavar="PATH", help="where the result goes")
    parser.add_argument("--quick", action="store_true", help=quick)
    options = parser.parse_args()
    console, before = Console(stderr=True), machine()
    try:
        figures, told = run(options.quick, console)
    except RatchetError as error:
        console.print(str(error), markup=False)
        return 2
    command = f"python benchmarks/{name}.py" + (" --quick" if options.quick else "")
    write(options.json, figures, command, packages, measured_on=before, **told)
    for figure, value in figures.items():
        console.print(f"{figure:36}{value:>12,}")
    return 0
