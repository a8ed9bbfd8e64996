"""What a run's workspace has finished so far. Runs are killed and stages skipped: whatever is missing is simply not there yet."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.files import read_json, sha256_files, sha256_json
from ratchet.installed import FOLDER

CODE = ("ratchet", "tasks", "monitoring")
OFFLINE_NOTE = "offline.json"  # tasks/rounds.py


def model_folders(workspace: Path) -> list[Path]:
    """Folders of finished versions, in the order in which a run makes them: the warm starts of all actors, then of each round its meter and critic,
    what its offline update made (a copy of its start has no note), and its version."""
    found = round_folders(workspace / "models" / "rounds")
    rounds = [path / name for path in found for name in ("meter", "critic", "offline", "version") if name != "offline" or (path / name / OFFLINE_NOTE).is_file()]
    warm = sorted((workspace / "models" / "warm").glob("*"))
    return [folder for folder in [*warm, *rounds] if (folder / "ratchet.json").is_file() and any(folder.glob("*.safetensors"))]


def round_folders(folder: Path) -> list[Path]:
    """Folders named by a round's number, in that order."""
    found = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def label_of(folder: Path) -> dict[str, Any]:
    """The folder's ratchet.json. Raises RatchetError where it is damaged."""
    return _record(folder / "ratchet.json", "run its stage again", ("version", "parents", "stage", "round", "line"))


def hashes_of(folder: Path, label: dict[str, Any], code: str | None) -> dict[str, Any]:
    """Content hashes of a version: weights, tokenizer, data, params, code (SHA-256; null where a part is not there)."""
    tokenizer = folder / "tokenizer.json"
    return {
        "weights": sha256_files(sorted(folder.glob("*.safetensors"))),
        "tokenizer": sha256_files([tokenizer]) if tokenizer.is_file() else None,
        "data": label.get("data_hashes") or {},
        "params": label.get("params_hash"),
        "code": code,
    }


def code_hash(workspace: Path) -> str | None:
    """Over the names and bytes of the code that made the outs: dvc.yaml and the Python files of library, stages and monitoring.

    In a project the fingerprints of the installed package stand for the latter.
    """
    paths = [path for room in CODE for path in sorted((workspace / room).rglob("*.py"))] + sorted((workspace / FOLDER).glob("*"))
    paths += [path for path in [workspace / "dvc.yaml"] if path.is_file()]
    names = [str(path.relative_to(workspace)) for path in paths]
    return sha256_json([names, sha256_files(paths)]) if paths else None


def commit_of(workspace: Path) -> dict[str, Any] | None:
    """`{"id", "changed"}`: the commit that the workspace was made of, and whether its code differs from it; None without git.

    A project that lies somewhere inside another repository is not that repository's commit.
    """
    if not (workspace / ".git").exists():
        return None
    head = _git(workspace, "rev-parse", "HEAD")
    code = [name for name in (*CODE, "dvc.yaml") if (workspace / name).exists()]
    return {"id": head, "changed": bool(_git(workspace, "status", "--porcelain", "--", *code))} if head else None


def _git(folder: Path, *arguments: str) -> str | None:
    """git's output, or None where it cannot say: lineage names the commit where there is one."""
    # a hook's GIT_DIR would point at the hook's repository
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def evaluations(workspace: Path) -> Iterator[tuple[str, int, dict[str, Any], Path]]:
    """(version, round, SUMMARY, outcomes file) of each finished evaluation of a round's own version."""
    for folder in round_folders(workspace / "data" / "rounds"):
        record = _finished(folder / "evaluation" / "evaluation.json", ("version", "selected", "candidates", "confirm"))
        if record is None:
            continue
        k, version, selected = int(folder.name), record["version"], record["selected"]
        for one in record["candidates"]:
            if one["version"] == version and one["name"] == selected:
                yield version, k, one["select"], folder / "evaluation" / f"select-{selected}.parquet"
        yield version, k, record["confirm"], folder / "evaluation" / "confirm.parquet"


def final(workspace: Path) -> dict[str, Any] | None:
    """data/final/final.json, or None."""
    return _finished(workspace / "data" / "final" / "final.json", ("warm", "champion", "comparison", "champion_round", "same"))


def verdicts(workspace: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(round, verdict) of each check of data that ran."""
    for folder in round_folders(workspace / "data" / "rounds"):
        record = _finished(folder / "check" / "verdict.json", ("passed", "checks"))
        if record is not None:
            yield int(folder.name), record


def drifts(workspace: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(round, comparison) of each round whose version was compared with earlier ones."""
    for folder in round_folders(workspace / "data" / "rounds"):
        record = _finished(folder / "drift" / "drift.json", ("status", "columns"))
        if record is not None and record["columns"]:
            yield int(folder.name), record


def meters(workspace: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(round, record) of each round that looked at a progress meter."""
    for folder in round_folders(workspace / "data" / "rounds"):
        record = _finished(folder / "meter" / "gate.json", ("event", "action", "reason"))
        if record is not None:
            yield int(folder.name), record


def decision_records(workspace: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(round, decision) of each decision that was made, baseline included."""
    for folder in round_folders(workspace / "data" / "rounds"):
        record = _finished(folder / "decision" / "decision.json", ("line", "champion", "candidate", "event", "reasons"))
        if record is not None:
            yield int(folder.name), record


def version_in_round(workspace: Path, k: int) -> str | None:
    """The version evaluated in round k, or None."""
    record = _finished(workspace / "data" / "rounds" / str(k) / "evaluation" / "evaluation.json", ("version",))
    return None if record is None else record["version"]


def _finished(path: Path, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """The record at `path`, or None where its stage has not ended or was skipped."""
    if not path.is_file():
        return None
    record = read_json(path)
    if isinstance(record, dict) and record.get("skipped") is not None:
        return None
    return _record(path, "run its stage again", keys)


def _record(path: Path, way_out: str, keys: tuple[str, ...]) -> dict[str, Any]:
    record = read_json(path)
    missing = [key for key in keys if not isinstance(record, dict) or key not in record]
    if missing:
        raise RatchetError(f"{path}: damaged ({', '.join(missing)} missing); delete it and {way_out}")
    return record
