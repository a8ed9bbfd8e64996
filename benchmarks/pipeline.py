"""What the pipeline itself costs: a `dvc repro` that has nothing to do, and the flow around a stage.

    python -m benchmarks.pipeline --json benchmarks/results/pipeline.json

The stage graph is that of dvc.yaml, with the checkout's own code as dependencies; every command only writes its outs. The flow runs
through Prefect's temporary API, in a workspace of a temporary checkout, registry and index included.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import common

CHECKOUT = Path(__file__).parents[1]
COPIED = ("ratchet", "tasks", "monitoring", "presets", "params.yaml", "waivers.yaml", ".dvcignore", ".gitignore")
WRITE_OUTS = """import os, sys
for path in sys.argv[1:]:
    file = path if "." in os.path.basename(path) else path + "/skipped.json"
    os.makedirs(os.path.dirname(file), exist_ok=True)
    open(file, "w").write('{"skipped": "benchmark"}')
"""


def trivial(stages: dict[str, Any]) -> dict[str, Any]:
    """The same stages, each of which only writes its outs."""
    for stage in stages.values():
        inner = stage.get("do", stage)
        inner["cmd"] = " ".join(["python -S write_outs.py", *inner.get("outs", []), *inner.get("metrics", [])])
    return stages


def make_checkout(folder: Path) -> None:
    """A committed copy of this checkout with trivial stages."""
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    (folder / ".dvc").mkdir()
    for name in ("config", ".gitignore"):
        shutil.copy(CHECKOUT / ".dvc" / name, folder / ".dvc" / name)
    (folder / "write_outs.py").write_text(WRITE_OUTS)
    stages = yaml.safe_load((CHECKOUT / "dvc.yaml").read_text())["stages"]
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": trivial(stages)}, sort_keys=False))
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@example.org"]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "benchmark"]):
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


def time_command(command: list[str], folder: Path) -> float:
    """Seconds of wall-clock; raises where the command fails."""
    env = {**os.environ, "DVC_NO_ANALYTICS": "1", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    return time.perf_counter() - began


def run_flow(checkout: Path) -> tuple[Path, list[float]]:
    """(workspace, seconds from the beginning of each stage to that of the next one) of one run."""
    from flows import evolve, workspace
    from flows.view import View, watching

    class Clock(View):
        begins: list[float] = []

        def stage_begins(self, name: str, place: int, count: int) -> None:
            self.begins.append(time.perf_counter())

        def note(self, text: str) -> None:
            raise RuntimeError(text)

    clock = Clock()
    token = watching.set(clock)
    run_id = evolve.evolve(checkout=checkout)
    watching.reset(token)
    return workspace.find(checkout, run_id), [after - before for before, after in zip(clock.begins, clock.begins[1:], strict=False)]


def measure(repeats: int) -> dict[str, float]:
    """The figures, in seconds; medians."""
    from flows.evolve import start_api

    with tempfile.TemporaryDirectory() as name:
        checkout = Path(name) / "checkout"
        checkout.mkdir()
        make_checkout(checkout)
        began = time.perf_counter()
        start_api()
        started = time.perf_counter() - began
        folder, seconds = run_flow(checkout)
        command = statistics.median(
            time_command([sys.executable, "-S", "write_outs.py", "timed/out.json"], checkout) for _ in range(repeats)
        )
        noop = [time_command([sys.executable, "-m", "dvc", "repro"], folder) for _ in range(repeats)]
    return {
        "noop_repro_s": round(statistics.median(noop), 3),
        "flow_overhead_per_stage_s": round(statistics.median(seconds) - command, 3),
        "temporary_api_start_s": round(started, 3),
        "stages": len(seconds) + 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write figures, machine and versions here")
    parser.add_argument("--repeats", type=int, default=5, help="no-op repros that are timed")
    given = parser.parse_args()
    before = common.machine()
    figures = measure(given.repeats)
    print("\n".join(f"{name}: {value}" for name, value in figures.items()))
    if given.json:
        common.write(given.json, figures, "python -m benchmarks.pipeline", ("dvc", "prefect", "sqlalchemy"), before)


if __name__ == "__main__":
    main()
