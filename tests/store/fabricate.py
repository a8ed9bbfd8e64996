"""A run's outs in the real formats, small: made-up versions measured by the real functions."""

from __future__ import annotations

import hashlib
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa

from ratchet.episodes.files import table_of, write_table
from ratchet.evaluation.compare import compare
from ratchet.evaluation.promotion import decide
from ratchet.evaluation.summary import summarise
from ratchet.files import write_json
from ratchet.store.sync import sync
from ratchet.store.throughput import path_of
from tests.evaluation.fabricate import outcomes

TASKS = 96
LINE = "quickstart"


def version_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def played(name: str, skill: float, panel: str, panel_hash: str | None = None) -> list[dict]:
    """Outcomes in which a task's difficulty is the same for all versions."""
    hard = np.random.default_rng(len(panel)).random(TASKS)
    return outcomes(version_of(name), hard < skill, panel=panel, panel_hash=panel_hash or f"hash-of-{panel}")


def model(folder: Path, name: str, k: int, stage: str = "evolve_online", parents: tuple[str, ...] = (), line: str = LINE) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(name.encode())
    (folder / "tokenizer.json").write_text("{}")
    label = {
        "version": version_of(name),
        "parents": [version_of(one) for one in parents],
        "stage": stage,
        "round": k,
        "iteration": 10 if k else None,
    }
    label |= {"actor": "actor", "line": line, "tokenizer_id": "tok", "params_hash": "params", "data_hashes": {"demonstrations": "demo"}}
    write_json(folder / "ratchet.json", label)


def verdict(failed: bool = False) -> dict:
    check = {"name": "replay_mismatch", "severity": "fail", "passed": not failed, "observed": 0.06 if failed else 0.0, "limit": 0.0}
    return {"passed": not failed, "skipped": None, "checks": [check | {"detail": "replayed episodes that came out different", "rows": []}]}


def episodes(folder: Path, name: str, n: int = 8, steps: int = 5) -> None:
    """`n` episodes of `steps` steps each."""
    rows = [
        {
            "episode_id": f"{name}-{i:04d}",
            "env": "alfworld",
            "task_id": f"task-{i}",
            "policy_id": name,
            "solved": i % 2 == 0,
            "score": float(i % 2 == 0),
        }
        | {
            "round": 0,
            "iteration": 0,
            "sample": 0,
            "seed": 1,
            "terminated": True,
            "truncated": False,
            "n_steps": steps,
            "n_tokens": 3 * steps,
        }
        for i in range(n)
    ]
    turns = [
        {
            "episode_id": row["episode_id"],
            "t": t,
            "observation": "You see a mug.",
            "reply": "> look",
            "action": "look",
            "action_type": "look",
        }
        | {"prompt_ids": [1, 2], "reply_ids": [3, 4, 5], "logprobs": [0.0] * 3, "entropy": [0.0] * 3, "policy_version": name}
        | {"tokens_from": "generated", "reward": 0.0, "score": 0.0, "format_ok": True, "valid": True, "repeated": False}
        for row in rows
        for t in range(steps)
    ]
    write_table(folder / "episodes.parquet", "episodes", table_of("episodes", rows))
    write_table(folder / "steps.parquet", "steps", table_of("steps", turns))


def table(rows: list[dict]) -> pa.Table:
    return table_of("outcomes", rows)


def evaluate(workspace: Path, k: int, name: str, skill: float, salt: str = "") -> None:
    folder, selected = workspace / f"data/rounds/{k}/evaluation", "iter-010" if k else "warm"
    select, confirm = (played(name, skill, panel, f"hash-of-{panel}{salt}") for panel in ("select", "confirm"))
    write_table(folder / f"select-{selected}.parquet", "outcomes", table(select))
    write_table(folder / "confirm.parquet", "outcomes", table(confirm))
    episodes(folder, name)
    version = version_of(name)
    record = {"round": k, "version": version, "model": f"models/rounds/{k}/version", "skipped": None, "selected": selected}
    record |= {"candidates": [{"name": selected, "version": version, "select": summarise(select)}], "confirm": summarise(confirm)}
    write_json(folder / "evaluation.json", record)


def start(workspace: Path, name: str, skill: float, line: str = LINE, salt: str = "") -> dict:
    """Warm start, round 0 and its baseline decision; returns the champion."""
    for folder in ("models/warm/actor", "models/rounds/0/version"):
        model(workspace / folder, name, 0, "warm_start", line=line)
    episodes(workspace / "data/demonstrations", "expert")
    evaluate(workspace, 0, name, skill, salt)
    champion = {"version": version_of(name), "round": 0, "model": "models/rounds/0/champion", "name": name, "skill": skill}
    record = {"round": 0, "line": line, "champion": champion, "candidate": None, "next_start": "champion", "promoted": False}
    record |= {
        "event": "model.baseline",
        "stop": None,
        "reasons": ["first"],
        "comparison": None,
        "alpha": None,
        "checks": None,
        "waived": [],
    }
    write_json(workspace / "data/rounds/0/decision/decision.json", record)
    write_table(
        workspace / "data/rounds/0/decision/champion.parquet", "outcomes", table(played(name, skill, "confirm", f"hash-of-confirm{salt}"))
    )
    return champion


def go_on(workspace: Path, k: int, champion: dict, name: str, skill: float, line: str = LINE, salt: str = "") -> dict:
    """Round k with candidate `name`; returns the champion after it."""
    base = workspace / f"data/rounds/{k}"
    episodes(base / "harvest", f"harvest-{k}")
    write_json(base / "check/verdict.json", verdict())
    model(workspace / f"models/rounds/{k}/version", name, k, parents=(champion["name"],), line=line)
    evaluate(workspace, k, name, skill, salt)
    before, after = (played(n, s, "confirm", f"hash-of-confirm{salt}") for n, s in ((champion["name"], champion["skill"]), (name, skill)))
    comparison = compare(before, after, level=0.95, resamples=500)
    decided = decide(comparison, 0.5)
    candidate = {"version": version_of(name), "round": k}
    now = candidate | {"model": "", "name": name, "skill": skill} if decided.promoted else champion
    record = {"round": k, "line": line, "champion": now, "candidate": candidate, "next_start": "champion", "promoted": decided.promoted}
    record |= {
        "event": decided.event,
        "stop": None,
        "reasons": decided.reasons,
        "comparison": comparison,
        "alpha": 0.025,
        "checks": verdict(),
        "waived": [],
    }
    write_json(base / "decision/decision.json", record)
    return now


def stop(workspace: Path, k: int, champion: dict) -> None:
    """Round k whose data fails a check."""
    base, reason = workspace / f"data/rounds/{k}", "failed checks: replay_mismatch"
    episodes(base / "harvest", f"harvest-{k}")
    write_json(base / "check/verdict.json", verdict(failed=True))
    for out in ("online", "evaluation"):
        write_json(base / out / "skipped.json", {"skipped": reason})
    write_json(workspace / f"models/rounds/{k}/version/skipped.json", {"skipped": reason})
    record = {
        "round": k,
        "line": LINE,
        "champion": champion,
        "candidate": None,
        "next_start": "champion",
        "promoted": False,
        "event": "run.stopped",
    }
    record |= {"stop": reason, "reasons": [reason], "comparison": None, "alpha": None, "checks": verdict(failed=True), "waived": []}
    write_json(base / "decision/decision.json", record)


def finish(workspace: Path, warm: dict, champion: dict, resamples: int = 700) -> dict:
    """data/final; returns its comparison."""
    a, b = (played(one["name"], one["skill"], "test") for one in (warm, champion))
    comparison = compare(a, b, resamples=resamples)
    folder = workspace / "data/final"
    write_table(folder / "warm.parquet", "outcomes", table(a))
    write_table(folder / "champion.parquet", "outcomes", table(b))
    episodes(folder, "final")
    record = {"warm": summarise(a), "champion": summarise(b), "comparison": comparison, "champion_round": champion["round"]}
    write_json(folder / "final.json", record | {"same": warm["version"] == champion["version"]})
    return comparison


def measured(workspace: Path, stage: str, decoding: float = 3.0, at: str = "2026-01-01T00:00:00.000000+00:00", state: str = "done") -> dict:
    """What a stage's clock said: 300 tokens decoded in `decoding` seconds of 10."""
    record = {
        "schema": 1, "stage": stage, "state": state, "line": LINE, "params_hash": "abc", "machine": "a processor, 2 cores", "threads": 2,
        "measured_at": at, "wall_s": 10.0, "seconds": {"decoding": decoding, "environment": 1.0, "other": 9.0 - decoding},
        "counts": {"tokens_generated": 300}, "decoding_tokens_per_s": 300 / decoding, "peak_memory_mb": 512.0,
    }  # fmt: skip
    write_json(path_of(workspace, stage), record)
    return record


def whole_run(root: Path, run_id: str = "run-1") -> tuple[Path, dict, dict, dict]:
    """A run in which round 1 is promoted and round 2 is not: (workspace, warm, champion, final comparison)."""
    workspace = root / "runs" / run_id
    warm = start(workspace, "warm", 0.4)
    champion = go_on(workspace, 1, warm, "better", 0.7)
    assert champion["name"] == "better"
    assert go_on(workspace, 2, champion, "same again", 0.71)["name"] == "better"
    measured(workspace, "harvest@1")
    return workspace, warm, champion, finish(workspace, warm, champion)


def sync_often(root: Path, run: str, ready: Barrier) -> None:
    """For a process of its own: syncs a run thrice, from the moment when all are ready."""
    ready.wait(60)
    for _ in range(3):
        sync(root, root / "runs" / run, run)
