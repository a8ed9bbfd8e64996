"""Evaluation on fixed panels: `select` chooses among a round's candidates, `confirm` is what the decision looks at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ratchet.envs.benchmarks import open_pool
from ratchet.episodes.files import write_table
from ratchet.evaluation.panels import Panel, read_panel
from ratchet.evaluation.rows import outcomes_of
from ratchet.evaluation.summary import summarise
from ratchet.files import read_json, write_json
from ratchet.policies.base import Policy
from ratchet.rollout.play import Job
from tasks.common import Stage, main, say, skipped
from tasks.rollouts import model_policy, play_shards


def play_panel(stage: Stage, folder: Path, panel: Panel, name: str) -> tuple[pa.Table, pa.Table, pa.Table]:
    """(outcomes, episodes, steps) of a model folder on a panel."""
    settings, own = stage.settings, stage.settings.evaluate
    return play_policy(stage, model_policy(folder, settings, policy_id=settings.actor, rows=own.shard, temperature=own.temperature), panel, name)


def play_policy(
    stage: Stage, policy: Policy, panel: Panel, name: str, accept: Callable[[pa.Table], None] = lambda steps: None, rows: int | None = None
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """(outcomes, episodes, steps) of a policy on a panel; `accept` as in `play_shards`, `rows` at a time (default: `evaluate.shard`)."""
    settings, own = stage.settings, stage.settings.evaluate
    round_number = int(stage.key or settings.last)
    jobs = [
        Job(task, settings.seed, sample, round_number, 0, f"{panel.name}/{task.task_id}")
        for task in panel.tasks
        for sample in range(own.samples)
    ]
    with open_pool(stage.path("data/games"), settings.env, [panel.name], admissible=False) as pool:
        episodes, steps = play_shards(stage, name, jobs, policy, pool, shard=2 * own.shard, rows=rows or own.shard, accept=accept)
    return outcomes_of(episodes, steps, version=policy.version, panel=panel), episodes, steps


def _candidates(folder: Path) -> list[tuple[str, Path]]:
    """A warm start is its only candidate; a round lists its own."""
    listing = folder / "candidates.json"
    return [(name, folder / name) for name in json.loads(listing.read_text())] if listing.is_file() else [("warm", folder)]


def run(stage: Stage) -> None:
    """Writes data/rounds/K/evaluation and models/rounds/K/version."""
    assert stage.key is not None
    folder = stage.path(stage.settings.evaluations[stage.key].candidates)
    if reason := skipped(folder):
        return stage.skip(reason)
    stage.call_players()
    out = stage.out(f"data/rounds/{stage.key}/evaluation")
    candidates = [_select(stage, name, path, out) for name, path in _candidates(folder)]
    best = max(candidates, key=lambda one: one["select"]["success"]["mean"])  # the first of equals
    chosen = folder if best["name"] == "warm" else folder / best["name"]
    confirm, episodes, steps = play_panel(stage, chosen, read_panel(stage.path("data/panels/confirm.json")), "confirm")
    write_table(out / "confirm.parquet", "outcomes", confirm)
    write_table(out / "episodes.parquet", "episodes", episodes)
    write_table(out / "steps.parquet", "steps", steps)
    card = read_json(chosen / "ratchet.json")
    result = {
        "round": int(stage.key),
        "version": card["version"],
        "model": f"models/rounds/{stage.key}/version",
        "skipped": None,
        "candidates": candidates,
        "selected": best["name"],
        "confirm": summarise(confirm),
    }
    write_json(out / "evaluation.json", result)
    shutil.copytree(chosen, stage.out(f"models/rounds/{stage.key}/version"), dirs_exist_ok=True)
    stage.metrics(result)
    mean = result["confirm"]["success"]
    say(f"{stage.title}: {best['name']} is {card['version']}, confirm {100 * mean['mean']:.1f} % ({100 * mean['low']:.1f}–{100 * mean['high']:.1f})")
    stage.finish()


def _select(stage: Stage, name: str, folder: Path, out: Path) -> dict[str, Any]:
    panel = read_panel(stage.path("data/panels/select.json"))
    outcomes, _, _ = play_panel(stage, folder, panel, f"select {name}")
    write_table(out / f"select-{name}.parquet", "outcomes", outcomes)
    return {"name": name, "version": read_json(folder / "ratchet.json")["version"], "select": summarise(outcomes)}


if __name__ == "__main__":
    main("evaluate", run, "round")
