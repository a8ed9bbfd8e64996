"""Candidate, champion, archived: where a version stands, and since when.

The rule is one function of a card and the champions. What it comes to is written on the card each time it changes, so that a card
alone tells how its version fared; the list only grows, like the others.
"""

from __future__ import annotations

from pathlib import Path

from ratchet.store.cards import Card, append_status, read_cards
from ratchet.store.champions import champions

CANDIDATE, CHAMPION, ARCHIVED = "candidate", "champion", "archived"
ACTOR = "actor"  # what a card is of where it does not say


def kind_of(card: Card) -> str:
    """`actor`, `meter` or `critic`."""
    return card.get("kind") or ACTOR


def status(card: Card, champion_of: dict[str, str]) -> str:
    """`champion` of a line; `archived` once something was decided about it; else `candidate`."""
    if card["version"] in champion_of.values():
        return CHAMPION
    decided = [entry for entry in card["decisions"] if not entry.get("awaits")]  # a person's answer is still to come
    return ARCHIVED if decided else CANDIDATE


def renew_statuses(root: Path) -> int:
    """Brings the cards' `statuses` up to date with decisions and champions; returns how many changed.

    Made by whoever decided, right after it; killed in between, the next call does it. Raises RatchetError for a damaged card.
    """
    registry = root / "registry"
    champion_of = champions(registry)
    changed = 0
    for card in read_cards(registry):
        now = status(card, champion_of)
        known = card["statuses"][-1]["status"] if card["statuses"] else None
        if now != known:
            lines = sorted(line for line, version in champion_of.items() if version == card["version"])
            last = card["decisions"][-1] if card["decisions"] else {}
            entry = {"status": now, "line": lines[0] if lines else card["line"], "event": last.get("event"), "run": last.get("run")}
            append_status(registry, card["version"], entry)
            changed += 1
    return changed
