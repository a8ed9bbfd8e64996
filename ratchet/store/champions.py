"""Who is champion, and how a version is found by what a person types."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.store.cards import Card, read_card, read_cards, weights_of
from ratchet.store.locks import locked

CHAMPION, WARM = "champion", "warm"


def champions(registry: Path) -> dict[str, str]:
    """{line: version}. Empty before the first run."""
    path = registry / "champions.json"
    if not path.is_file():
        return {}
    value = read_json(path)
    if not isinstance(value, dict) or not all(isinstance(version, str) for version in value.values()):
        raise RatchetError(f"{path}: is no mapping of lines to versions; restore it (`git checkout` where it was committed)")
    return value


def set_champion(root: Path, line: str, version: str) -> None:
    """Makes `version` champion of `line`, and `models/champion` a relative link to its weights.

    The link is that of the line promoted last. Raises RatchetError where the version's weights are gone.
    """
    registry = root / "registry"
    folder = weights_of(root, read_card(registry, version))
    if folder is None:
        raise RatchetError(
            f"version {version}: its weights are no longer on this machine; run `dvc checkout` in its run's folder, then try again"
        )
    with locked(root, "registry"):
        write_json(registry / "champions.json", champions(registry) | {line: version})
        _link(root / "models" / CHAMPION, folder)


def _link(link: Path, target: Path) -> None:
    """Replaces the link in one step, so that whoever reads it sees the old or the new champion."""
    if link.exists() and not link.is_symlink():
        raise RatchetError(f"{link}: is no link, so it is not replaced by the champion's; move it away and run `ratchet sync`")
    link.parent.mkdir(parents=True, exist_ok=True)
    part = link.with_name(f".{link.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()), target_is_directory=True)
    os.replace(part, link)


def find(registry: Path, text: str, line: str | None = None) -> Card:
    """The card that `text` means: a version's id or the unique beginning of one, `champion`, `champion:LINE`, or `warm`.

    `champion` is that of `line`, else of the only line, else what models/champion links to. `warm` is the warm start that the
    champion's run began with. Raises RatchetError for no match, naming the nearest, and for a beginning of several ids.
    """
    if text == CHAMPION or text.startswith(f"{CHAMPION}:"):
        return read_card(registry, _champion(registry, text.partition(":")[2] or line))
    if text == WARM:
        return warm_of(registry, read_card(registry, _champion(registry, line)))
    versions = [card["version"] for card in read_cards(registry)]
    found = [version for version in versions if text and version.startswith(text)]
    if len(found) == 1:
        return read_card(registry, found[0])
    if found:
        raise RatchetError(f"version {text!r} is the beginning of {len(found)} versions ({', '.join(sorted(found)[:4])}); type more of it")
    if not versions:
        raise RatchetError(f"no version {text!r}: the registry is empty; `ratchet run` makes the first versions")
    near = difflib.get_close_matches(text, [*versions, CHAMPION, WARM], n=1, cutoff=0.0)[0]
    raise RatchetError(f"no version {text!r}; did you mean {near!r}? (`ratchet versions` lists all)")


def warm_of(registry: Path, card: Card) -> Card:
    """The version that was evaluated in round 0 of the run that made `card`'s version."""
    run = card["runs"][-1]["run"]
    for other in read_cards(registry):
        if any(entry["run"] == run and entry["round"] == 0 for entry in other["evaluations"]):
            return other
    raise RatchetError(f"run {run} of version {card['version']} has no evaluated warm start; name a version instead (`ratchet versions`)")


def _champion(registry: Path, line: str | None) -> str:
    lines = champions(registry)
    if not lines:
        raise RatchetError("no line has a champion yet; `ratchet run` makes the first one")
    if line is not None:
        if line not in lines:
            near = difflib.get_close_matches(line, lines, n=1, cutoff=0.0)[0]
            raise RatchetError(f"line {line!r} has no champion; did you mean {near!r}? (lines: {', '.join(sorted(lines))})")
        return lines[line]
    if len(lines) == 1:
        return next(iter(lines.values()))
    label = registry.parent / "models" / CHAMPION / "ratchet.json"
    linked = read_json(label).get("version") if label.is_file() else None
    if linked in lines.values():
        return str(linked)
    raise RatchetError(f"there are champions of {len(lines)} lines; say which, `{CHAMPION}:LINE` (lines: {', '.join(sorted(lines))})")
