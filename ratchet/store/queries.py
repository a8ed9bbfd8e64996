"""What people ask the registry: which versions there are, and how two of them compare. From the cards, so no database is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.evaluation.compare import LEVEL, RESAMPLES, compare
from ratchet.store.cards import Card, read_cards
from ratchet.store.champions import WARM, champions, find, warm_of
from ratchet.store.statuses import kind_of, status

PANELS = ("select", "confirm", "test")


def versions_table(root: Path, line: str | None = None) -> list[dict[str, Any]]:
    """One row a version, oldest first: version, kind, line, status, round, iteration, stage, actor, parents, run, created_at, created_by,
    event, and for each panel (`select`, `confirm`, `test`) the latest success `{"mean", "low", "high", "n"}` or None."""
    champion_of = champions(root / "registry")
    cards = [card for card in read_cards(root / "registry") if line in (None, card["line"])]
    return [row_of(card, champion_of) for card in cards]


def row_of(card: Card, champion_of: dict[str, str]) -> dict[str, Any]:
    """A card as a row of that table."""
    names = ("version", "line", "round", "iteration", "stage", "actor", "parents", "created_at", "created_by")
    return {
        **{name: card.get(name) for name in names},
        "run": card["runs"][-1]["run"] if card["runs"] else None,
        "kind": kind_of(card),
        "status": status(card, champion_of),
        "event": card["decisions"][-1]["event"] if card["decisions"] else None,
        **{panel: _latest(card, panel) for panel in PANELS},
    }


def _latest(card: Card, panel: str) -> dict[str, Any] | None:
    found = [entry for entry in card["evaluations"] if entry["panel"] == panel]
    if not found:
        return None
    summary = max(found, key=lambda entry: entry["at"])["summary"]
    return summary["success"] | {"n": summary["n"]}


def resolve_pair(root: Path, a: str, b: str, line: str | None = None) -> tuple[Card, Card]:
    """The two versions; `warm` is the warm start of the other one's run. Raises RatchetError for an unknown one."""
    registry = root / "registry"
    if a == WARM and b != WARM:
        other = find(registry, b, line)
        return warm_of(registry, other), other
    if b == WARM and a != WARM:
        other = find(registry, a, line)
        return other, warm_of(registry, other)
    return find(registry, a, line), find(registry, b, line)


def comparison_of(root: Path, a: str, b: str, panel: str = "test", line: str | None = None) -> dict[str, Any]:
    """COMPARISON of two versions on a panel that both were measured on (gain = b − a).

    Where a report compared the same two versions on this panel, its level and resamples are used, so the numbers are the
    report's; else 95 % and 10 000. Raises RatchetError for unknown versions, where they were never measured on the same
    panel, and where their outcomes are gone.
    """
    card_a, card_b = resolve_pair(root, a, b, line)
    if card_a["version"] == card_b["version"]:
        raise RatchetError(f"{a} and {b} are the same version, {card_a['version']}; name two different ones (`ratchet versions`)")
    told = reported(card_a, card_b, panel)
    pair = same_panel(root, card_a, card_b, panel, told["panel_hash"] if told else None)
    if pair is None and told is not None:
        return told  # the run's folder is gone, what it came to is on the card
    if pair is None:
        raise RatchetError(_why_not(card_a, card_b, panel))
    level, resamples = (told["level"], told["resamples"]) if told else (LEVEL, RESAMPLES)
    return compare(read_table(pair[0], "outcomes"), read_table(pair[1], "outcomes"), level=level, resamples=resamples)


def reported(a: Card, b: Card, panel: str) -> dict[str, Any] | None:
    """The latest comparison of a with b on `panel` that a run made, in its decision or at its end; else None."""
    entries = [entry for entry in [*b["evaluations"], *b["decisions"]] if entry.get("comparison")]

    def of_pair(one: dict[str, Any]) -> bool:
        told = one["comparison"]
        return (told["a"]["version"], told["b"]["version"], told["panel"]) == (a["version"], b["version"], panel)

    same = [entry for entry in entries if of_pair(entry)]
    return max(same, key=lambda entry: entry["at"])["comparison"] if same else None


def same_panel(root: Path, a: Card, b: Card, panel: str, panel_hash: str | None = None) -> tuple[Path, Path] | None:
    """Outcome files of both versions on one panel (equal hashes): of one run where there is one, and the latest; else None."""
    pairs = [
        (one["run"] == other["run"], max(one["at"], other["at"]), root / one["outcomes"], root / other["outcomes"])
        for one in a["evaluations"]
        for other in b["evaluations"]
        if one["panel"] == other["panel"] == panel and one["panel_hash"] == other["panel_hash"] and panel_hash in (None, one["panel_hash"])
    ]
    there = [pair for pair in pairs if pair[2].is_file() and pair[3].is_file()]
    if not there:
        return None
    best = max(there, key=lambda pair: pair[:2])
    return best[2], best[3]


def _why_not(a: Card, b: Card, panel: str) -> str:
    hashes = [{one["panel_hash"] for one in card["evaluations"] if one["panel"] == panel} for card in (a, b)]
    for card, found in zip((a, b), hashes, strict=True):
        if not found:
            others = sorted({one["panel"] for one in card["evaluations"]})
            way_out = f"try `--panel {others[0]}`" if others else "let its run go on (`ratchet run`)"
            return f"version {card['version']} was not measured on panel {panel} (measured on: {', '.join(others) or 'none'}); {way_out}"
    if not hashes[0] & hashes[1]:
        return (
            f"versions {a['version']} and {b['version']} were measured on different {panel} panels (their hashes differ), which "
            "cannot be compared; compare versions of runs with the same games"
        )
    return f"the outcomes of {a['version']} or {b['version']} on panel {panel} are gone; run `dvc checkout` in the folders of their runs"
