"""The quickstart, timed: the demo's steps in a fresh clone of this checkout's HEAD, installation excluded.

    python benchmarks/quickstart.py --json benchmarks/results/quickstart.json

Figures: demo_s (wall seconds of `ratchet run --preset quickstart`), warm_success and final_success (success on the test panel,
generated rooms), gain, gain_low, gain_high (paired, 95 %, resampled by scene), panel_n. Where nothing was promoted the champion is
the warm start and the gain is 0. The stages' seconds stand beside the figures, as `stages`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import machine, write

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ratchet-agents", "torch", "transformers", "accelerate", "prefect", "dvc", "great-expectations", "sqlalchemy", "pyarrow")


def demo(folder: Path, preset: str, sets: Sequence[str] = ()) -> tuple[float, Path]:
    """Clones HEAD, runs the main job there with `sets` on top of a preset, returns (seconds, the run's workspace)."""
    clone = folder / "ratchet"
    subprocess.run(["git", "clone", "--quiet", "--local", str(ROOT), str(clone)], check=True)
    environment = {**os.environ, "PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": str(clone)}
    began = time.perf_counter()
    changes = [part for one in sets for part in ("--set", one)]
    subprocess.run([sys.executable, "-m", "flows.cli", "run", "--preset", preset, *changes], cwd=clone, env=environment, check=True)
    seconds = time.perf_counter() - began
    (workspace,) = [path for path in (clone / "runs").iterdir() if (path / "params.yaml").is_file()]
    return seconds, workspace


def figures(workspace: Path) -> dict[str, Any]:
    final = json.loads((workspace / "data" / "final" / "final.json").read_text())
    gain = final["comparison"]["gain"]
    return {
        "warm_success": final["warm"]["success"]["mean"],
        "final_success": final["champion"]["success"]["mean"],
        "gain": gain["mean"],
        "gain_low": gain["low"],
        "gain_high": gain["high"],
        "panel_n": final["comparison"]["n"],
        "champion_round": final["champion_round"],
    }


def stages(workspace: Path) -> dict[str, float]:
    record = json.loads((workspace / "logs" / "run.json").read_text())
    return {stage["name"]: round(stage["seconds"], 1) for stage in record["stages"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "quickstart.json", help="where the result goes")
    parser.add_argument("--quick", action="store_true", help="the preset smoke in place of quickstart: every stage, numbers without meaning")
    parser.add_argument("--keep", type=Path, help="keep the finished workspace's reports in this folder")
    arguments = parser.parse_args()
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        seconds, workspace = demo(Path(folder), "smoke" if arguments.quick else "quickstart")
        found, table = {"demo_s": round(seconds, 1), **figures(workspace)}, stages(workspace)
        if arguments.keep:
            shutil.copytree(workspace / "reports", arguments.keep, dirs_exist_ok=True)
    for name, value in [*table.items(), *found.items()]:
        print(f"{name:24} {value}")
    quick = " --quick" if arguments.quick else ""
    write(arguments.json, found, f"python benchmarks/quickstart.py{quick}", PACKAGES, before, stages=table)


if __name__ == "__main__":
    main()
