"""Throughput cards: `registry/throughput/RUN.json`, one a run, with one entry for each time that a stage ran to its end.

A stage leaves what its clock said in logs/throughput/STAGE.json of its workspace, since outs hold no time. The entries only grow,
so a stage that became slower over runs can be seen later, on the same machine, with the same settings or others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.clock import PHASES
from ratchet.errors import RatchetError
from ratchet.files import read_json, sha256_json, write_json
from ratchet.processor import cores, processor
from ratchet.store.locks import locked

LOGS = Path("logs") / "throughput"
RUNNING, DONE = "running", "done"
SCHEMA = 1
FIELDS = ("stage", "line", "params_hash", "machine", "threads", "measured_at", "wall_s", "peak_memory_mb")

Record = dict[str, Any]


def path_of(workspace: Path, stage: str) -> Path:
    """Where the stage `harvest@1`, for instance, says how fast it is."""
    return workspace / LOGS / f"{stage}.json"


def record_of(workspace: Path, stage: str) -> Record | None:
    """What a stage said last, while it runs or at its end; None where it said nothing, or nothing that can be read."""
    try:
        found = read_json(path_of(workspace, stage))
    except (RatchetError, OSError):
        return None
    return found if _is_record(found) else None


def finished(workspace: Path) -> Iterator[Record]:
    """The records of stages that came to their end, by name; logs are nobody's evidence, so what is damaged is left out."""
    for path in sorted((workspace / LOGS).glob("*.json")):
        found = record_of(workspace, path.stem)
        if found is not None and found["state"] == DONE:
            yield found


def take_up(root: Path, workspace: Path, run_id: str) -> int:
    """Appends to the run's card what its stages have said since; returns how much was new."""
    found = list(finished(workspace))
    if not found:
        return 0
    path = root / "registry" / "throughput" / f"{run_id}.json"
    with locked(root, "registry"):
        card = _read(path) if path.is_file() else {"schema": SCHEMA, "run": run_id, "stages": []}
        known = {entry_id(run_id, one) for one in card["stages"]}
        new = [one for one in found if entry_id(run_id, one) not in known]
        if new:
            entries = sorted([*card["stages"], *new], key=lambda one: one["measured_at"])
            write_json(path, card | {"stages": entries})
    return len(new)


def entries(registry: Path) -> Iterator[tuple[str, Record]]:
    """(run, record) of all cards. Raises RatchetError, one line, for a damaged card."""
    for path in sorted((registry / "throughput").glob("*.json")):
        card = _read(path)
        yield from ((card["run"], one) for one in card["stages"])


def entry_id(run_id: str, record: Record) -> str:
    """16 hex: a stage of a run that ended at some time."""
    return sha256_json([run_id, record["stage"], record["measured_at"]])[:16]


def shares(record: Record) -> dict[str, float]:
    """Share of the wall-clock time by phase, `other` last; phases without any time are left out."""
    whole = record["wall_s"] or 1.0
    return {name: record["seconds"][name] / whole for name in (*PHASES, "other") if record["seconds"].get(name)}


def machine() -> str:
    """Processor and count of usable cores: a slow-down on another one is no slow-down."""
    return f"{processor()}, {cores()} cores"


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("seconds"), dict) and all(name in value for name in (*FIELDS, "state", "counts"))


def _read(path: Path) -> dict[str, Any]:
    way_out = "restore it (`git checkout` where it was committed), or delete it: it is history, and nothing else needs it"
    try:
        card = read_json(path)
    except RatchetError:
        raise RatchetError(f"{path}: damaged throughput card (not valid JSON); {way_out}") from None
    if not isinstance(card, dict) or not isinstance(card.get("stages"), list) or not all(map(_is_record, card["stages"])):
        raise RatchetError(f"{path}: damaged throughput card (`stages` with records are expected); {way_out}")
    if card.get("schema", 0) > SCHEMA:
        raise RatchetError(f"{path}: card schema {card['schema']}, this Ratchet reads up to {SCHEMA}; upgrade ratchet-agents to read it")
    return card
