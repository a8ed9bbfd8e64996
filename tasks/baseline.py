"""The first champion: the warm start, as it is."""

from __future__ import annotations

import shutil

from ratchet.evaluation.summary import selected
from ratchet.files import read_json, write_json
from tasks.common import SKIPPED, Stage, main, say

EMPTY = (
    *(f"data/rounds/0/{name}" for name in ("replay", "check", "drift", "online", "buffer")),
    *(f"models/rounds/0/{name}" for name in ("critic", "meter")),
)


def run(stage: Stage) -> None:
    """Writes data/rounds/0/decision, models/rounds/0/champion, models/rounds/0/start, and what else a round takes from the one before."""
    evaluation = read_json(stage.path("data/rounds/0/evaluation/evaluation.json"))
    decision = {
        "round": 0,
        "line": stage.settings.line,
        "champion": {"version": evaluation["version"], "round": 0, "model": "models/rounds/0/champion", "select": selected(evaluation)},
        "candidate": None,
        "next_start": "champion",
        "promoted": False,
        "event": "model.baseline",
        "stop": None,
        "reasons": ["the warm start is the first champion"],
        "comparison": None,
        "alpha": None,
        "checks": None,
        "waived": [],
    }
    out = stage.out("data/rounds/0/decision")
    write_json(out / "decision.json", decision)
    shutil.copy(stage.path("data/rounds/0/evaluation/confirm.parquet"), out / "champion.parquet")
    for name in ("champion", "start"):
        shutil.copytree(stage.path("models/rounds/0/version"), stage.out(f"models/rounds/0/{name}"), dirs_exist_ok=True)
    for folder in EMPTY:
        write_json(stage.out(folder) / SKIPPED, {"skipped": "no round was played yet"})
    stage.metrics(decision)
    say(f"baseline: {evaluation['version']} is the first champion of {stage.settings.line}")
    stage.finish()


if __name__ == "__main__":
    main("baseline", run)
