"""Version cards: `registry/VERSION.json`, one a version, whose lists only grow.

A card holds what the version is (content hashes of weights, tokenizer, data, params and code; parents; line, round, stage)
and what happened to it: `runs` that made it, `evaluations`, `checks` of the data behind it, `decisions` about it, and `statuses`,
which were candidate, champion or archived in turn. The database is rebuilt from cards; nothing here is rebuilt from the database.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.files import read_json, sha256_json, write_json
from ratchet.store.locks import locked

LISTS = ("runs", "evaluations", "checks", "decisions")
ADDED_LISTS = ("statuses", "drift")  # that cards of earlier versions lack
CARD_SCHEMA = 1
CLOCK = "at"  # the one key of an entry that does not make it another entry

Card = dict[str, Any]


def read_card(registry: Path, version: str) -> Card:
    """Raises RatchetError for a version without a card and for a damaged card."""
    return _read(_path(registry, version))


def read_cards(registry: Path) -> list[Card]:
    """All cards, oldest first. Raises RatchetError, one line, for a damaged card."""
    cards = [_read(path) for path in card_paths(registry)]
    return sorted(cards, key=lambda card: (card["created_at"], card["round"], card["version"]))


def card_paths(registry: Path) -> list[Path]:
    """The files of all cards, by version."""
    return [path for path in sorted(registry.glob("*.json")) if path.name != "champions.json" and not path.name.startswith(".")]


def add_version(registry: Path, card: Card, run: dict[str, Any]) -> bool:
    """Writes the card of a new version, or adds `run` to the card that is there; True where either was new.

    `card` holds version, line, round, iteration, stage, actor, parents, tokenizer_id and hashes, and `kind` where it is no actor;
    `run` holds `run` (its id), `weights` (the model folder, relative to the checkout), line, round and, where the workspace is under
    git, `commit`. Of a version that two runs made, the card says
    what the first one was.
    """

    def change(old: Card | None) -> Card | None:
        now = _now()
        if old is None:
            empty: Card = {name: [] for name in (*LISTS, *ADDED_LISTS)}
            return {**empty, **card, "schema": CARD_SCHEMA, "created_by": run["run"], "created_at": now, "runs": [run | {CLOCK: now}]}
        return _appended(old, "runs", run)

    return _change(registry, card["version"], change)


def append_evaluation(registry: Path, version: str, entry: dict[str, Any]) -> bool:
    """`entry`: run, round, panel, panel_hash, summary, outcomes (path). False where the card already holds it."""
    return _append(registry, version, "evaluations", entry)


def append_check(registry: Path, version: str, entry: dict[str, Any]) -> bool:
    """`entry`: run, round, passed, skipped, checks. False where the card already holds it."""
    return _append(registry, version, "checks", entry)


def append_decision(registry: Path, version: str, entry: dict[str, Any]) -> bool:
    """`entry`: run, round, line, by (`rule` or a person), event, reasons, and what was compared. False where it is there."""
    return _append(registry, version, "decisions", entry)


def append_drift(registry: Path, version: str, entry: dict[str, Any]) -> bool:
    """`entry`: run, round, status and the columns that were compared. False where an equal one is there."""
    return _append(registry, version, "drift", entry)


def append_status(registry: Path, version: str, entry: dict[str, Any]) -> bool:
    """`entry`: status, line, and the event and run that it came of. False where it is the last one already; an earlier one may recur."""

    def change(old: Card | None) -> Card | None:
        last = old["statuses"][-1:] if old is not None else []
        if old is None or (last and last[0]["status"] == entry["status"]):
            return None
        return old | {"statuses": [*old["statuses"], entry | {CLOCK: _now()}]}

    return _change(registry, version, change)


def holds(card: Card, name: str, entry: dict[str, Any]) -> bool:
    """Whether the card's list `name` has this entry, whenever it was written."""
    wanted = entry_id(entry)
    return any(entry_id(one) == wanted for one in card[name])


def entry_id(entry: dict[str, Any]) -> str:
    """12 hex over an entry without its clock: the same event is the same id."""
    return sha256_json({key: value for key, value in entry.items() if key != CLOCK})[:12]


def weights_of(root: Path, card: Card) -> Path | None:
    """The first model folder among the card's runs that is still there and still holds this version, else None."""
    for run in card["runs"]:
        folder = root / run["weights"]
        label = folder / "ratchet.json"
        if label.is_file() and read_json(label).get("version") == card["version"]:
            return folder
    return None


def _append(registry: Path, version: str, name: str, entry: dict[str, Any]) -> bool:
    def change(old: Card | None) -> Card | None:
        if old is None:
            raise RatchetError(f"{_path(registry, version)}: no such card; run `ratchet sync` in the checkout")
        return _appended(old, name, entry)

    return _change(registry, version, change)


def _appended(card: Card, name: str, entry: dict[str, Any]) -> Card | None:
    return None if holds(card, name, entry) else card | {name: [*card[name], entry | {CLOCK: _now()}]}


def _change(registry: Path, version: str, change: Callable[[Card | None], Card | None]) -> bool:
    """Reads, changes and writes one card under the registry's lock; True where `change` gave something to write."""
    path = _path(registry, version)
    with locked(registry.parent, "registry"):
        new = change(_read(path) if path.is_file() else None)
        if new is not None:
            write_json(path, new)
    return new is not None


def _path(registry: Path, version: str) -> Path:
    if not version.isalnum():
        raise RatchetError(f"{version!r} is no version id; `ratchet versions` lists them")
    return registry / f"{version}.json"


def _read(path: Path) -> Card:
    way_out = "restore it (`git checkout` where it was committed), or delete it and run `ratchet sync`"
    if not path.is_file():
        raise RatchetError(f"{path}: no such card; `ratchet versions` lists the versions, `ratchet sync` writes missing cards")
    try:
        card = read_json(path)
    except RatchetError:
        raise RatchetError(f"{path}: damaged version card (not valid JSON); {way_out}") from None
    if not isinstance(card, dict) or card.get("version") != path.stem or "created_at" not in card or "round" not in card:
        raise RatchetError(f"{path}: damaged version card (version, round and created_at are expected); {way_out}")
    if card.get("schema", 0) > CARD_SCHEMA:
        raise RatchetError(
            f"{path}: card schema {card['schema']}, this Ratchet reads up to {CARD_SCHEMA}; upgrade ratchet-agents to read it"
        )
    card = {name: [] for name in ADDED_LISTS} | card
    if not all(isinstance(card.get(name), list) for name in (*LISTS, *ADDED_LISTS)):
        raise RatchetError(f"{path}: damaged version card ({', '.join((*LISTS, *ADDED_LISTS))} must be lists); {way_out}")
    return card


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
