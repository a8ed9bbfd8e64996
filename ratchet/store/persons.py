"""Decisions by a person: a version is made champion, or the line goes back to the champion before. On record, as rules' are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.store.cards import Card, append_decision, read_card, read_cards, weights_of
from ratchet.store.champions import champions, find, set_champion
from ratchet.store.database import open_index
from ratchet.store.index import index_registry
from ratchet.store.locks import locked
from ratchet.store.outbox import Event, put
from ratchet.store.statuses import renew_statuses

PROMOTED, ROLLED_BACK = "model.promoted", "model.rolled_back"


def promote(root: Path, version: str, reason: str, by: str, line: str | None = None) -> dict[str, Any]:
    """Makes a version champion of its line, or of `line`, and returns the decision.

    Raises RatchetError for an unknown version, one that is champion already, one without weights here, and an empty reason.
    """
    card = find(root / "registry", version, line)
    target = line or card["line"]
    return _decide(root, card, target, PROMOTED, reason, by)


def rollback(root: Path, reason: str, by: str, line: str | None = None, to: str | None = None) -> dict[str, Any]:
    """Makes the champion before the present one champion again, or the version `to`, and returns the decision.

    `line` may be left out where there is only one. Raises RatchetError where there is none before.
    """
    registry = root / "registry"
    target = line or _only_line(registry)
    current = find(registry, f"champion:{target}")["version"]
    if to is not None:
        return _decide(root, find(registry, to), target, ROLLED_BACK, reason, by)
    before = [version for version in reign(read_cards(registry), target) if version != current]
    if not before:
        raise RatchetError(f"line {target}: no champion is known before {current}; name a version with --to (`ratchet versions`)")
    return _decide(root, read_card(registry, before[-1]), target, ROLLED_BACK, reason, by)


def reign(cards: list[Card], line: str) -> list[str]:
    """The champions of a line, first to last, that a rollback can go through: what was rolled back is no longer among them.

    A run's baseline counts where the line had no champion; a run's promotion that the line did not take over counts too, since
    cards do not tell it apart, unless it is at the end and so differs from champions.json.
    """
    entries = [entry for card in cards for entry in card["decisions"] if entry["line"] == line]
    versions: list[str] = []
    for entry in sorted(entries, key=lambda entry: entry["at"]):
        version = entry["champion"]
        if entry["event"] == ROLLED_BACK and version in versions:
            del versions[versions.index(version) + 1 :]
        elif (entry["promoted"] or not versions) and not entry.get("awaits") and version not in versions[-1:]:
            versions.append(version)
    return versions


def _decide(root: Path, card: Card, line: str, event: str, reason: str, by: str) -> dict[str, Any]:
    registry, version = root / "registry", card["version"]
    if not reason.strip():
        raise RatchetError("--reason: is empty; say why, it stays on record with the version")
    with locked(root, "champions"):
        previous = champions(registry).get(line)
        if previous == version:
            raise RatchetError(f"version {version} is champion of line {line} already; nothing was changed")
        if weights_of(root, card) is None:
            raise RatchetError(f"version {version}: its weights are no longer here; run `dvc checkout` in its run's folder, then try again")
        run = card["runs"][-1]["run"]
        entry: dict[str, Any] = {"line": line, "event": event, "promoted": event == PROMOTED, "stop": None, "reasons": [reason.strip()]}
        entry |= {"comparison": None, "alpha": None, "waived": [], "run": run, "round": card["round"], "by": by, "candidate": version}
        entry |= {"champion": version, "previous": previous}
        # the same decision may be taken twice for the same reason, and both stay on record
        append_decision(registry, version, entry | {"decided": datetime.now(UTC).isoformat(timespec="microseconds")})
        set_champion(root, line, version)
    renew_statuses(root)
    text = f"{event.removeprefix('model.').replace('_', ' ')} {version}, by {by}: {reason.strip()}"
    put(root, Event(event, run, card["round"], line, version, text, {"champion": version, "previous": previous}))
    engine = open_index(root)
    index_registry(engine, root)
    engine.dispose()
    return entry


def _only_line(registry: Path) -> str:
    lines = sorted(champions(registry))
    if len(lines) != 1:
        raise RatchetError(f"which line? there are champions of {', '.join(lines) or 'none'}; name it, `ratchet rollback LINE`")
    return lines[0]
