"""What every benchmark writes beside its figures: on what machine, with which versions, by which command."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ratchet.processor import cores, processor


def machine() -> dict[str, Any]:
    """CPU model, usable cores, memory in GiB, load averages (1, 5, 15 minutes). Nothing that names the machine."""
    return {
        "cpu": processor(),
        "cores": cores(),
        "memory_gib": _memory_gib(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
    }


def _field(path: Path, key: str) -> str:
    """The first `key: value` of a /proc file, or nothing."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _memory_gib() -> float | None:
    kilobytes = _field(Path("/proc/meminfo"), "MemTotal").split()
    return round(int(kilobytes[0]) / 2**20, 1) if kilobytes else None


def versions(names: Iterable[str]) -> dict[str, str]:
    """Distribution name -> installed version (`not installed` where it is missing), and Python's own."""
    found = {"python": platform.python_version()}
    installed = {(d.metadata["Name"] or "").lower().replace("_", "-"): d.version for d in metadata.distributions()}
    return found | {name: installed.get(name.lower().replace("_", "-"), "not installed") for name in names}


def main(name: str, about: str | None, quick: str, packages: Iterable[str], figures: Callable[[bool], tuple[Mapping[str, float], Mapping[str, Any]]]) -> None:
    """The command line of benchmarks/NAME.py: `figures(quick)` gives the figures and what stands beside them."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the result goes; by default it is only printed")
    parser.add_argument("--quick", action="store_true", help=quick)
    arguments = parser.parse_args()
    before = machine()
    found, beside = figures(arguments.quick)
    for figure, value in found.items():
        print(f"{figure:28} {value:g}")
    if arguments.json:
        write(arguments.json, found, f"python benchmarks/{name}.py{' --quick' if arguments.quick else ''}", packages, before, **beside)


def write(
    path: Path,
    figures: Mapping[str, Any],
    command: str,
    names: Iterable[str] = (),
    measured_on: Mapping[str, Any] | None = None,
    **beside: Any,
) -> None:
    """Writes `figures`, machine, versions of the distributions `names` and `command` as JSON with sorted keys.

    `measured_on` is a `machine()` taken before measuring (its load average is then that of before); by default it is taken now.
    `beside` stands next to the figures under its own names.
    """
    result = {
        "figures": dict(figures),
        "machine": dict(measured_on) if measured_on is not None else machine(),
        "versions": versions(names),
        "command": command,
        **beside,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2, sort_keys=True) + "\n", encoding="utf-8")
