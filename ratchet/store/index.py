"""The index in SQL: what cards, outbox and the runs' Parquet files hold, for questions over many of them.

Everything is written as delete + insert in one transaction, which every dialect understands: lists through Core, and COPY where the
rows are many and the database is PostgreSQL. A checkout touches only its own rows, so a team's checkouts may share one database.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select

from ratchet.clock import COUNTS, PHASES
from ratchet.files import read_json, sha256_files, sha256_json, write_json
from ratchet.store.cards import Card, entry_id, read_cards, weights_of
from ratchet.store.champions import champions
from ratchet.store.database import with_index
from ratchet.store.loading import columns_of, load_file
from ratchet.store.locks import locked
from ratchet.store.outbox import delivered, pending
from ratchet.store.statuses import kind_of, status
from ratchet.store.tables import BY_KIND, OF_CHECKOUT, OF_FILE, alerts, checks, decisions, drift, evaluations, files, throughput, versions
from ratchet.store.throughput import FIELDS, Record, entries, entry_id as throughput_id

HERE = "here"  # run id of the checkout itself as a workspace
GLOBS = {
    "episodes": ("data/*/episodes.parquet", "data/rounds/*/*/episodes.parquet"),
    "steps": ("data/*/steps.parquet", "data/rounds/*/*/steps.parquet"),
    "outcomes": (
        "data/rounds/*/evaluation/select-*.parquet",
        "data/rounds/*/evaluation/confirm.parquet",
        "data/rounds/*/decision/champion.parquet",
        "data/final/warm.parquet",
        "data/final/champion.parquet",
    ),
}


def workspaces(root: Path) -> list[tuple[str, Path]]:
    """(run id, workspace) of every run whose folder is there: `runs/ID`, and the checkout itself as HERE."""
    runs = root / "runs"
    found = [(path.name, path) for path in sorted(runs.iterdir()) if path.is_dir()] if runs.is_dir() else []
    return found + ([(HERE, root)] if (root / "data").is_dir() else [])


def checkout_id(root: Path) -> str:
    """Tells this checkout's rows from others' in a shared database: 12 hex, kept in `.ratchet/checkout.json`.

    A checkout that was moved stays the same; a copy of one that is still there becomes another.
    """
    path, here = root / ".ratchet" / "checkout.json", str(root.resolve())
    with locked(root, "checkout"):
        known = read_json(path) if path.is_file() else {"id": secrets.token_hex(6), "path": ""}
        if known["path"] != here:
            original = Path(known["path"] or here) / ".ratchet" / "checkout.json"
            if original != path and original.is_file() and read_json(original) == known:
                known["id"] = secrets.token_hex(6)
            known["path"] = here
            write_json(path, known)
    return known["id"]


def rebuild(root: Path) -> dict[str, int]:
    """Empties this checkout's part of the index and fills it from cards, outbox and the runs' files (`ratchet index`).

    Returns the rows of each table.
    """

    def work(engine: Engine) -> dict[str, int]:
        with locked(root, "index"), engine.begin() as connection:
            _empty(connection, root, OF_CHECKOUT)
        fill(engine, root)
        return _counts(engine, root)

    return with_index(root, work)


def take_up(engine: Engine, root: Path, workspace: Path, run_id: str) -> None:
    """Registry and one run into the index; all runs where the index holds none of this checkout yet, for instance a new one."""
    index_registry(engine, root)
    all_of_them = is_new(engine, root)
    index_run(engine, workspace, run_id, root)
    for one_id, one in workspaces(root) if all_of_them else []:
        if one_id != run_id:
            index_run(engine, one, one_id, root)


def is_new(engine: Engine, root: Path) -> bool:
    """Whether the index holds no file of this checkout."""
    with engine.connect() as connection:
        return connection.execute(select(files.c.file_id).where(files.c.checkout == checkout_id(root)).limit(1)).first() is None


def fill(engine: Engine, root: Path) -> None:
    """Everything of this checkout into the index."""
    index_registry(engine, root)
    for run_id, workspace in workspaces(root):
        index_run(engine, workspace, run_id, root)


def index_registry(engine: Engine, root: Path) -> None:
    """Replaces what comes from the cards and the outbox; they are small, so always all of it."""
    with locked(root, "index"):
        cards = read_cards(root / "registry")
        champion_of = champions(root / "registry")
        waiting, done, measured = pending(root), delivered(root), list(entries(root / "registry"))
        rows: dict[Table, list[dict[str, Any]]] = {
            versions: [_version_row(root, card, champion_of) for card in cards],
            evaluations: [_evaluation_row(card["version"], one) for card in cards for one in card["evaluations"]],
            decisions: [_decision_row(card["version"], one) for card in cards for one in card["decisions"]],
            checks: _check_rows(cards),
            drift: _drift_rows(cards),
            alerts: [_alert_row(event, False) for event in waiting] + [_alert_row(event, True) for event in done],
            throughput: [_throughput_row(run_id, record) for run_id, record in measured],
        }
        checkout = checkout_id(root)
        with engine.begin() as connection:
            _empty(connection, root, rows)
            for table, ones in rows.items():
                _insert(connection, table, [{"checkout": checkout, **one} for one in ones])


def index_run(engine: Engine, workspace: Path, run_id: str, root: Path | None = None) -> int:
    """Indexes the workspace's finished episodes, steps and outcomes; returns the rows written.

    A file is known by its content: what is indexed is skipped, what changed is replaced, what is gone is removed. One
    transaction a file, so a killed call leaves whole files. `root` is the checkout whose lock is taken (default: the
    workspace's own). Raises RatchetError for a damaged file.
    """
    written, checkout = 0, checkout_id(root or workspace)
    with locked(root or workspace, "index"):
        with engine.connect() as connection:
            mine = select(files).where(files.c.checkout == checkout, files.c.run_id == run_id)
            known = {row.path: row for row in connection.execute(mine)}
        found = {str(path.relative_to(workspace)): (kind, path) for kind, path in _parquet_files(workspace)}
        with engine.begin() as connection:
            _forget(connection, [known[path].file_id for path in known.keys() - found.keys()])
        for relative, (kind, path) in sorted(found.items()):
            written += _index_file(engine, checkout, run_id, relative, kind, path, known.get(relative))
    return written


def _parquet_files(workspace: Path) -> Iterator[tuple[str, Path]]:
    for kind, patterns in GLOBS.items():
        for pattern in patterns:
            for path in workspace.glob(pattern):
                yield kind, path


def _index_file(engine: Engine, checkout: str, run_id: str, relative: str, kind: str, path: Path, known: Any) -> int:
    if not path.is_file():
        return 0  # its stage has begun again since the folder was listed; the next call finds the new file
    stat = path.stat()
    if known is not None and (known.size, known.modified) == (stat.st_size, stat.st_mtime_ns):
        return 0
    row: dict[str, Any] = {
        "file_id": sha256_json([checkout, run_id, relative])[:12],
        "checkout": checkout,
        "run_id": run_id,
        "path": relative,
        "kind": kind,
        "content": sha256_files([path]),
        "size": stat.st_size,
        "modified": stat.st_mtime_ns,
    }
    if known is not None and known.content == row["content"]:
        with engine.begin() as connection:
            connection.execute(files.update().where(files.c.file_id == row["file_id"]).values(modified=stat.st_mtime_ns))
        return 0
    target = BY_KIND[kind]
    table = columns_of(path, kind, target)
    with engine.begin() as connection:
        _forget(connection, [row["file_id"]])
        connection.execute(insert(files), row | {"rows": table.num_rows})
        load_file(connection, target, table, row["file_id"])
    return table.num_rows


def _forget(connection: Connection, file_ids: Iterable[str]) -> None:
    for file_id in file_ids:
        connection.execute(delete(files).where(files.c.file_id == file_id))  # its rows go with it (ON DELETE CASCADE)


def _empty(connection: Connection, root: Path, tables: Iterable[Table]) -> None:
    """Deletes this checkout's rows of `tables`, given parents first; what hangs on them goes along (ON DELETE CASCADE)."""
    mine = checkout_id(root)
    for table in reversed(list(tables)):
        connection.execute(delete(table).where(table.c.checkout == mine))


def _counts(engine: Engine, root: Path) -> dict[str, int]:
    """Rows of this checkout in each table."""
    mine = checkout_id(root)
    queries = {table.name: select(func.count()).where(table.c.checkout == mine) for table in OF_CHECKOUT}
    queries |= {
        table.name: select(func.count()).select_from(table.join(files)).where(files.c.checkout == mine) for table in OF_FILE
    }
    with engine.connect() as connection:
        return {name: connection.execute(query).scalar_one() for name, query in queries.items()}


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)


def _version_row(root: Path, card: Card, champion_of: dict[str, str]) -> dict[str, Any]:
    folder = weights_of(root, card)
    hashes = card.get("hashes") or {}
    return {
        "version": card["version"],
        "kind": kind_of(card),
        "status": status(card, champion_of),
        "parents": json.dumps(card.get("parents") or []),
        "weights": None if folder is None else str(folder.relative_to(root)) if folder.is_relative_to(root) else str(folder),
        **{f"{name}_hash": hashes.get(name) for name in ("weights", "params", "code")},
        **{name: card.get(name) for name in ("line", "round", "iteration", "stage", "actor", "tokenizer_id", "created_by", "created_at")},
    }


def _evaluation_row(version: str, entry: dict[str, Any]) -> dict[str, Any]:
    summary = entry["summary"]
    measured = ("n", "samples", "errors", "score", "avg_at_k", "pass_hat_k", "steps", "tokens", "invalid_share", "truncated_share")
    return {
        "evaluation_id": f"{version}-{entry_id(entry)}",
        "version": version,
        "run_id": entry["run"],
        **{name: entry[name] for name in ("round", "panel", "panel_hash", "outcomes", "at")},
        **{name: summary.get(name) for name in measured},
        **{f"success_{name}": summary["success"][name] for name in ("mean", "low", "high")},
    }


def _decision_row(version: str, entry: dict[str, Any]) -> dict[str, Any]:
    gain = (entry.get("comparison") or {}).get("gain") or {}
    return {
        "decision_id": f"{version}-{entry_id(entry)}",
        "version": version,
        "run_id": entry["run"],
        **{name: entry.get(name) for name in ("round", "line", "by", "event", "promoted", "candidate", "champion", "alpha", "stop", "at")},
        "reasons": json.dumps(entry["reasons"], ensure_ascii=False),
        **{f"gain_{name}": gain.get(name) for name in ("mean", "low", "high")},
    }


def _drift_rows(cards: list[Card]) -> list[dict[str, Any]]:
    """One row a column that was compared, and what with."""
    rows: dict[str, dict[str, Any]] = {}
    for card in cards:
        for entry in card["drift"]:
            for one in entry["columns"]:
                row = {"run_id": entry["run"], "round": entry["round"], "column": f"{one['column']} against {one['against']}"}
                row |= {"method": one["method"], "observed": one["observed"], "detected": one["level"] != "ok"}
                row |= {"limit": one["fail"] if one["level"] == "fail" else one["warn"]}
                drift_id = sha256_json(row)[:16]
                rows[drift_id] = row | {"drift_id": drift_id}
    return list(rows.values())


def _check_rows(cards: list[Card]) -> list[dict[str, Any]]:
    """One row a check of a run's round, although the cards of two versions may tell of it."""
    rows: dict[str, dict[str, Any]] = {}
    for card in cards:
        for entry in card["checks"]:
            for check in entry["checks"]:
                row: dict[str, Any] = {"run_id": entry["run"], "round": entry["round"]}
                row |= {key: check[key] for key in ("name", "severity", "passed", "detail")}
                row |= {key: None if check[key] is None else str(check[key]) for key in ("observed", "limit")}
                check_id = sha256_json(row)[:16]
                rows[check_id] = row | {"check_id": check_id}
    return [rows[key] for key in sorted(rows)]


def _alert_row(event: Any, is_delivered: bool) -> dict[str, Any]:
    row = {name: getattr(event, name) for name in ("kind", "round", "line", "version", "text", "at")}
    return row | {"event_id": event.id, "run_id": event.run, "delivered": is_delivered}


def _throughput_row(run_id: str, record: Record) -> dict[str, Any]:
    return {
        "throughput_id": throughput_id(run_id, record),
        "run_id": run_id,
        **{name: record[name] for name in FIELDS},
        **{f"{name}_s": record["seconds"].get(name, 0.0) for name in (*PHASES, "other")},
        **{f"{name}_tokens_per_s": record.get(f"{name}_tokens_per_s") for name in COUNTS},
        **{count: record["counts"].get(count, 0) for count in COUNTS.values()},
    }
