"""Cells of several rounds: a buffer, a critic, an offline update, an online round, each by its stage's own code.

A round goes on from the one before (`loop.start_from: last`). After each one the version is played on `select`: greedily, for the stop rule
that is only watched here, and sampled, as a point of the curve. Neither counts as training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evidence.meters import gate_of
from benchmarks.evidence.workspaces import run_once
from ratchet.episodes.files import read_table, table_of, write_table
from ratchet.evaluation.panels import read_panel
from ratchet.files import read_json, write_json
from ratchet.settings import Settings, load
from ratchet.settings_critic import uses_buffer
from tasks.common import SKIPPED, Stage

STAGES = ("buffer", "fit_meter", "fit_critic", "evolve_offline", "evolve_online")
SUMS = ("episodes", "env_steps", "generated_tokens", "skipped_steps")


def in_rounds(settings: Settings) -> bool:
    """Whether a cell is more than one online round that begins at once."""
    return len(settings.rounds) > 1 or uses_buffer(settings)


def learn_rounds(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """(folder of the last round's last candidate, a point of the curve a round)."""
    settings, curve = load(folder / "params.yaml"), list[dict[str, Any]]()
    start = folder / "models" / "warm" / settings.actor
    outcomes = _played(folder, start, "0", "greedy 0", 0.0)
    best = {"round": 0, "outcomes": outcomes}
    for key in settings.rounds:
        _begin(folder, settings, key, start)
        for name in STAGES:
            run_once(folder, name, key)
        candidates = folder / "models" / "rounds" / key / "candidates"
        start = candidates / read_json(candidates / "candidates.json")[-1]
        curve.append(_point(folder, settings, key, start, best))
    return start, curve


def _begin(folder: Path, settings: Settings, key: str, start: Path) -> None:
    """Lays down what a round takes from others: its start, no reason to stop, no failed check, and no harvest but the meter's."""
    import os

    prev = settings.rounds[key].prev
    link = folder / "models" / "rounds" / prev / "start"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        os.symlink(start.resolve(), link)
    data = folder / "data" / "rounds"
    write_json(data / prev / "decision" / "decision.json", {"round": int(prev), "stop": None})
    if prev == "0":
        for path in (*(data / "0" / name for name in ("replay", "online", "buffer")), *(folder / "models" / "rounds" / "0" / name for name in ("critic", "meter"))):
            write_json(path / SKIPPED, {"skipped": "no round was played yet"})
    if settings.of_round(key).evolve_online.meter.enabled:
        run_once(folder, "harvest", key)
    else:
        for kind in ("episodes", "steps"):
            if not (data / key / "harvest" / f"{kind}.parquet").is_file():
                write_table(data / key / "harvest" / f"{kind}.parquet", kind, table_of(kind, []))
    write_json(data / key / "check" / "verdict.json", {"checks": []})


def _point(folder: Path, settings: Settings, key: str, model: Path, best: dict[str, Any]) -> dict[str, Any]:
    """What the round cost, and how good its version is; renews `best`, the best round on `select` so far."""
    from ratchet.evaluation.stopping import chance_of_gain

    spent = _spent(folder, settings, key)
    sampled, greedy = _played(folder, model, key, f"sampled {key}", 1.0), _played(folder, model, key, f"greedy {key}", 0.0)
    chance = chance_of_gain(best["outcomes"], greedy, settings.loop.stop.min_gain, settings.loop.stop.resamples)
    success, before = (float(np.mean(one["solved"].to_pylist())) for one in (greedy, best["outcomes"]))
    if success > before:
        best |= {"round": int(key), "outcomes": greedy}
    metrics = read_json(folder / "reports" / "metrics" / f"evolve_offline-{key}.json")
    own = metrics.get("curve") or read_json(folder / "reports" / "metrics" / f"evolve_online-{key}.json").get("curve") or []
    last = own[-1] if own else {}
    gate = gate_of(folder, key) if settings.of_round(key).evolve_online.meter.enabled else {}
    return {
        **spent,
        **gate,
        "iteration": int(key),
        "success": float(np.mean(sampled["solved"].to_pylist())),
        "select_success": success,
        "select_best": best["round"],
        "chance_of_gain": chance,
        "grad_norm": float(last.get("grad_norm") or 0.0),
        "policy": float(last.get("policy") or last.get("loss") or 0.0),
    }


def _spent(folder: Path, settings: Settings, key: str) -> dict[str, float]:
    """Environment steps and generated tokens of everything that the actor and its pool played in the round; experts are given."""
    found = dict.fromkeys(SUMS, 0.0)
    played = [folder / "data" / "rounds" / key / "online" / "episodes.parquet", folder / "data" / "rounds" / key / "harvest" / "episodes.parquet"]
    tables = [read_table(path, "episodes").to_pylist() for path in played if path.is_file()]
    buffer = folder / "data" / "rounds" / key / "buffer" / "episodes.parquet"
    if buffer.is_file():
        tables.append([row for row in read_table(buffer, "episodes").to_pylist() if row["policy_id"] == settings.actor and row["round"] == int(key)])
    seen: set[str] = set()
    for rows in tables:
        for row in rows:
            if row["policy_id"] != "expert" and row["episode_id"] not in seen:
                seen.add(row["episode_id"])
                found["episodes"] += 1
                found["env_steps"] += row["n_steps"] or 0
                found["generated_tokens"] += row["n_tokens"] or 0
    return found


def _played(folder: Path, model: Path, key: str, name: str, temperature: float) -> Any:
    """Outcomes on `select`; kept, so that a kill costs nothing."""
    from tasks.evaluate import play_policy
    from tasks.rollouts import model_policy

    kept = folder / "select" / f"{name}.parquet"
    if not kept.is_file():
        settings = load(folder / "params.yaml")
        stage = Stage(folder, settings, "evaluate", key)
        policy = model_policy(model, settings, policy_id=settings.actor, rows=settings.evaluate.shard, temperature=temperature)
        panel = read_panel(folder / "data" / "panels" / "select.json")
        outcomes, _, _ = play_policy(stage, policy, replace(panel), f"select {name}")
        write_table(kept, "outcomes", outcomes)
    return read_table(kept, "outcomes")


def stopped(curve: list[Mapping[str, Any]], patience: int) -> tuple[int, int]:
    """(round after which the rule would have stopped, the best round on `select`) of a cell's curve; rounds count from 1."""
    misses, halt = 0, len(curve)
    for place, point in enumerate(curve):
        misses = misses + 1 if point["chance_of_gain"] < 0.5 else 0
        if misses >= patience:
            halt = place + 1
            break
    return halt, int(curve[-1]["select_best"])
