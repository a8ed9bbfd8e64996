"""`ratchet export`: a version as a Hugging Face folder, with the evidence that the registry holds."""

from pathlib import Path
from typing import Any

from flows.commands import root
from ratchet.errors import RatchetError
from ratchet.files import write_json
from ratchet.store.cards import read_cards, weights_of
from ratchet.store.champions import find

EVIDENCE = "evidence.json"


def export_version(version: str, folder: Path, line: str | None) -> None:
    """`ratchet export`. Raises RatchetError for an unknown version, weights that are gone, and a folder that holds something."""
    from ratchet.models.export import export

    registry = root() / "registry"
    card = find(registry, version, line)
    weights = weights_of(root(), card)
    if weights is None:
        raise RatchetError(f"version {card['version']}: its weights are no longer here; run `dvc checkout` in its run's folder, then try again")
    lineage = ancestors(card, {one["version"]: one for one in read_cards(registry)})
    target = export(weights, folder, card, lineage)
    write_json(target / EVIDENCE, {"card": card, "lineage": lineage})
    print(f"{target}: version {card['version']} for plain transformers; README.md is its model card, {EVIDENCE} what the registry knows")


def ancestors(card: dict[str, Any], cards: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Cards of parents, theirs, and so on, nearest first, as far as the registry has them."""
    found: dict[str, dict[str, Any]] = {}
    waiting = list(card.get("parents") or [])
    while waiting:
        version = waiting.pop(0)
        if version in cards and version not in found and version != card["version"]:
            found[version] = cards[version]
            waiting += cards[version].get("parents") or []
    return list(found.values())
