"""A made-up checkout with a run of which everything is there: cards, outcomes, episodes with sidecars, checks, drift, alerts."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.episodes.files import read_table, table_of, write_table
from ratchet.files import read_json, write_bytes, write_json
from ratchet.store import outbox
from ratchet.store.sync import sync
from tests.page.fabricate import fabricate, hashed, instruments, panel_hash, solved, tasks, write_episodes

RUN = "quickstart-20260101-120000-a1b2"
SKILLS = {hashed("warm"): 0.553, hashed("round", 1): 0.549, hashed("round", 2): 0.638}


def checkout(root: Path, hostile: str | None = None) -> Path:
    """`root` with one run whose second round was promoted."""
    workspace = fabricate(root / "runs" / RUN, hostile=hostile)
    for k in (0, 1, 2):
        (workspace / f"models/rounds/{k}/version/model.safetensors").write_bytes(f"weights of {k}".encode())
        version = read_json(workspace / f"models/rounds/{k}/version/ratchet.json")["version"]
        outcomes(workspace / f"data/rounds/{k}/evaluation/confirm.parquet", version, "confirm")
    for name, version in (("warm", hashed("warm")), ("champion", hashed("round", 2))):
        outcomes(workspace / f"data/final/{name}.parquet", version, "test")
    online(workspace / "data/rounds/2/online")
    instruments(workspace, 2)
    stages = ["prepare", "demonstrate", "warm_start@actor", "harvest@1", "check@1", "evolve_online@1", "evaluate@1", "decide@1", "seal"]
    record = {"run_id": RUN, "order": stages, "state": "finished", "attempts": []}
    write_json(workspace / "logs/run.json", record | {"stages": [{"name": name, "state": "ran", "seconds": 12.5 + 60 * i} for i, name in enumerate(stages)]})
    write_bytes(workspace / "reports/report.html", b"<!doctype html><title>Report</title><script>1</script>")
    sync(root, workspace, RUN)
    alerts(root)
    return root


def outcomes(path: Path, version: str, panel: str) -> None:
    won = solved(SKILLS[version], panel, version)
    rows = [
        {"version": version, "panel": panel, "panel_hash": panel_hash(panel), "sample": 0, "seed": 0, "solved": won[task["task_id"]],
         "score": float(won[task["task_id"]]), "truncated": not won[task["task_id"]], "error": None, "n_steps": 9, "n_tokens": 120,
         "n_invalid": 0, "episode_id": hashed("episode", version, task["task_id"]), **{k: task[k] for k in ("task_id", "stratum", "cluster")}}
        for task in tasks(panel)
    ]  # fmt: skip
    write_table(path, "outcomes", table_of("outcomes", rows))


def online(folder: Path) -> None:
    """Episodes of an online round with what meter and critic said of their steps; of some steps they said nothing."""
    version = hashed("round", 2)
    write_episodes(folder, "train", solved(0.6, "train", version), version)
    steps = read_table(folder / "steps.parquet", "steps", ["episode_id", "t"]).to_pylist()
    last = {step["episode_id"]: step["t"] for step in steps}
    won = dict(zip(*(read_table(folder / "episodes.parquet", "episodes")[name].to_pylist() for name in ("episode_id", "solved")), strict=True))
    meter, critic = [], []
    for step in steps:
        share, good = step["t"] / max(1, last[step["episode_id"]]), won[step["episode_id"]]
        cost = 140 * (1 - share) + 12 * math.sin(3 * step["t"]) if good else 130 + 180 * share
        p = 0.5 + 0.45 * share if good else 0.6 - 0.5 * share
        key = {"episode_id": step["episode_id"], "t": step["t"]}
        weight = 0.4 + 1.6 * abs(math.sin(1.7 * step["t"] + 1))
        meter.append(key | {"completable": good or share < 0.6, "p": p, "remaining": cost, "parsed": step["t"] != 2, "cost": cost, "delta": 9.0, "weight": weight})
        critic.append(key | {"value": p, "q": p, "advantage": math.nan if step["t"] == 3 else 0.3 * math.cos(step["t"]) * (1 if good else -1), "weight": weight})
    pq.write_table(pa.Table.from_pylist(meter), folder / "meter.parquet")
    pq.write_table(pa.Table.from_pylist(critic), folder / "critic.parquet")


def alerts(root: Path) -> None:
    """One alert that a receiver has not taken yet, one that waits for Prefect; the promotion of the run is delivered."""
    from monitoring.alerts import handed, missed, taken, utc

    for event in outbox.pending(root):
        outbox.mark_delivered(root, event.id)
        outbox.note_deliveries(root, event.id, {"team": taken(handed(utc()), utc())}, settled=True)
    lost = outbox.Event("drift.detected", RUN, 2, "quickstart", hashed("round", 2), "round 2: action_type drifted (0.16, limit 0.1)")
    outbox.put(root, lost)
    outbox.mark_delivered(root, lost.id)
    now = utc() + timedelta(minutes=1)
    outbox.note_deliveries(root, lost.id, {"team": missed(handed(utc()), "answered 503", now)}, settled=False)
    outbox.put(root, outbox.stage_failed(RUN, "harvest@3", "the disk is full <b>now</b>"))


EPISODE = hashed("episode", hashed("round", 2), tasks("train")[0]["task_id"])
