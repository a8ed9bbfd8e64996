"""A run whose second round is made worse on purpose: is its version kept back, and who hears of it?

    python benchmarks/monitoring_spoilt.py --json PATH

A new project with a webhook's receiver on this machine, a real `ratchet serve`, and beside it a real `ratchet run` of the proving ground.
Round 2 learns with a rate that wrecks the actor (`rounds.2.set.evolve_online.lr`). Figures, 1 where it is so and else 0: spoilt_kept_back
(round 2's decision promotes nothing), spoilt_champion_unchanged (the line's champion is that of before round 2), spoilt_alert_received (a
model.regression about round 2 came to the webhook), spoilt_reasons_in_versions and spoilt_reasons_on_page (the decision's reasons, word for
word, in `ratchet versions VERSION` and on the page of the version). Beside them, as `rounds`: each round's event, success and reasons.
"""

from __future__ import annotations

import html
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import main  # noqa: E402
from monitoring_alerts import PATIENCE_S, Came, receiving, serving, told_project  # noqa: E402

from ratchet.store.champions import champions  # noqa: E402

PACKAGES = ("ratchet-agents", "prefect", "torch")
LINE = "proving-ground"
SPOILT = "rounds.2.set.evolve_online.lr=0.02"  # a hundred times the preset's
SETTINGS = ("rounds=2", SPOILT)
QUICK = ("prepare.games={train: 1000, seen: 16, select: 32, confirm: 128, test: 32}", "demonstrate.episodes=1000", "harvest.episodes=64",
         "actors={actor: {layers: 2, width: 64, heads: 2, kv_heads: 1, mlp: 160, tokens: 150000}, "
         "small: {layers: 1, width: 32, heads: 2, kv_heads: 1, mlp: 64, tokens: 20000}}", "evolve_online.iterations=4", "evolve_online.tasks=8")  # fmt: skip


def figures(quick: bool) -> tuple[dict[str, float], dict[str, Any]]:
    """(the figures, each round's decision in short)."""
    with tempfile.TemporaryDirectory() as folder, receiving() as (port, came):
        project = told_project(Path(folder) / "project")
        with serving(project, Path(folder) / "prefect", port) as page:
            run = _run(project, (*SETTINGS, *(QUICK if quick else ())))
            decisions = {k: json.loads((run / "data/rounds" / k / "decision/decision.json").read_text()) for k in ("1", "2")}
            spoilt = decisions["2"]
            version = spoilt["candidate"]["version"]
            told = _told(came, run.name)
            said = [_plain(text) for text in (_ratchet(project, "versions", version), html.unescape(_page(f"{page}/versions/{version}")))]
            found = {
                "spoilt_kept_back": not spoilt["promoted"],
                "spoilt_champion_unchanged": champions(project / "registry").get(LINE) == spoilt["champion"]["version"],
                "spoilt_alert_received": told,
                "spoilt_reasons_in_versions": all(_plain(reason) in said[0] for reason in spoilt["reasons"]),
                "spoilt_reasons_on_page": all(_plain(reason) in said[1] for reason in spoilt["reasons"]),
            }
    rounds = {k: {"event": one["event"], "reasons": one["reasons"], "gain": (one["comparison"] or {}).get("gain")} for k, one in decisions.items()}
    return {name: float(value) for name, value in found.items()}, {"rounds": rounds}


def _environment(project: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(project.parent / "run-prefect"), "NO_COLOR": "1", "COLUMNS": "1000"}


def _run(project: Path, sets: tuple[str, ...]) -> Path:
    """The workspace of a run in the project."""
    command = [sys.executable, "-m", "flows.cli", "run", "--preset", "proving-ground", *[part for one in sets for part in ("--set", one)]]
    subprocess.run(command, cwd=project, env=_environment(project), check=True)
    (workspace,) = [path for path in (project / "runs").iterdir() if (path / "params.yaml").is_file()]
    return workspace


def _told(came: Came, run: str) -> bool:
    """Whether a regression of the run's second round came, or comes soon."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            body = came.get(timeout=max(0.0, end - time.monotonic()))[1]
        except queue.Empty:
            return False
        if (body["event"], body["run"], body["round"]) == ("model.regression", run, 2):
            return True


def _ratchet(project: Path, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments], cwd=project, env=_environment(project), check=True, capture_output=True, text=True
    ).stdout


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def _plain(text: str) -> str:
    """Without what a terminal or a page may break a line with."""
    return " ".join(text.split())


if __name__ == "__main__":
    main("monitoring_spoilt", __doc__, "a smaller world and a smaller actor", PACKAGES, figures)
