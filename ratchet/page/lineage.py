"""Where versions come from: the rail beside a list of versions, and the line of ancestors of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from ratchet.store.cards import Card
from ratchet.store.statuses import CHAMPION, kind_of, status

LANE = 16  # pixels between two rails
Edge = tuple[int, float, int, float]  # lane and height (0 to 100) where it begins, and where it ends


@dataclass
class Rail:
    """A version's stretch of the rails: `lane` is where its dot stands, `edges` what passes, comes from above, or leads to parents below."""

    lane: int
    edges: list[Edge] = field(default_factory=list)


def rails(versions: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Rail]:
    """Rails of (version, parents), children before their parents. Parents that are not listed are left out."""
    listed = {version for version, _ in versions}
    lanes: list[str | None] = []  # the version that each rail leads down to
    found = {}
    for version, parents in versions:
        expected = [i for i, wanted in enumerate(lanes) if wanted == version]
        own = expected[0] if expected else _free(lanes)
        rail = Rail(own)
        rail.edges += [(i, 0, own, 50) for i in expected]
        rail.edges += [(i, 0, i, 100) for i, wanted in enumerate(lanes) if wanted not in (None, version)]
        for i in expected:
            lanes[i] = None
        for parent in dict.fromkeys(one for one in parents if one in listed and one not in found and one != version):
            there = lanes.index(parent) if parent in lanes else None
            if there is None:
                there = own if lanes[own] is None else _free(lanes)
                lanes[there] = parent
            rail.edges.append((own, 50, there, 100))
        found[version] = rail
    return found


def _free(lanes: list[str | None]) -> int:
    """The first lane that leads nowhere; one is added where there is none."""
    if None not in lanes:
        lanes.append(None)
    return lanes.index(None)


def width_of(found: dict[str, Rail]) -> int:
    """How many lanes the rails need."""
    return 1 + max((lane for rail in found.values() for lane in (rail.lane, *(i for edge in rail.edges for i in (edge[0], edge[2])))), default=0)


def drawn(rail: Rail, lanes: int, tone: str) -> Markup:
    """A rail of a row: lines that stretch with the row, and a dot that does not. `tone` is the version's status."""
    size = LANE * lanes
    paths = "".join(f'<path d="{_path(*edge)}"/>' for edge in sorted(set(rail.edges)))
    x = LANE * (rail.lane + 0.5)
    return Markup(
        f'<svg class="stretch" viewBox="0 0 {size} 100" preserveAspectRatio="none" width="{size}" aria-hidden="true">{paths}</svg>'
        f'<svg class="dots" viewBox="0 0 {size} 24" width="{size}" height="24" aria-hidden="true">'
        f'<circle class="knot {tone}" cx="{x:g}" cy="12" r="5"/></svg>'
    )


def _path(start: int, top: float, end: int, bottom: float) -> str:
    x, y = LANE * (start + 0.5), LANE * (end + 0.5)
    if start == end:
        return f"M{x:g} {top:g}V{bottom:g}"
    middle = (top + bottom) / 2
    return f"M{x:g} {top:g}C{x:g} {middle:g} {y:g} {middle:g} {y:g} {bottom:g}"


def ancestors(cards: dict[str, Card], version: str, champion_of: dict[str, str], most: int = 40) -> list[dict[str, Any]]:
    """The version and what it came of, child before parent: each with its card, status, further parents, and which of its hashes equal
    those of the ancestor below it."""
    line: list[dict[str, Any]] = []
    at: str | None = version
    while at is not None and at in cards and len(line) < most and at not in [one["version"] for one in line]:
        card = cards[at]
        parents = list(card.get("parents") or [])
        below = cards.get(parents[0]) if parents else None
        hashes = card.get("hashes") or {}
        before = (below or {}).get("hashes") or {}
        line.append(
            {
                "version": at,
                "card": card,
                "kind": kind_of(card),
                "status": status(card, champion_of),
                "commit": next((run["commit"] for run in card["runs"] if run.get("commit")), None),
                "more": parents[1:],
                "missing": parents[0] if parents and below is None else None,
                "same": sorted(name for name in ("params", "code", "tokenizer") if hashes.get(name) and hashes.get(name) == before.get(name)),
            }
        )
        at = parents[0] if parents else None
    return line


def children(cards: dict[str, Card], version: str) -> list[Card]:
    """Versions that were made from this one, oldest first."""
    found = [card for card in cards.values() if version in (card.get("parents") or [])]
    return sorted(found, key=lambda card: card["created_at"])


def tone_of(card: Card, champion_of: dict[str, str]) -> str:
    """CSS class of a version's status."""
    return "k-champion" if status(card, champion_of) == CHAMPION else f"k-{status(card, champion_of)}"
