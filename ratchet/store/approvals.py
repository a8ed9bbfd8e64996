"""Approval by a person, where the settings ask for it (`approval: person`): what the rule promoted waits, and an answer is a file.

The run itself goes on from what its rule promoted. What waits is the line: its champion, `models/champion` and whatever starts from
`champion` change only with an answer, `registry/approvals/LINE-VERSION.json`, which says yes or no, why, and by whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.store.cards import Card, append_decision, read_card, read_cards, weights_of
from ratchet.store.champions import champions, find
from ratchet.store.locks import locked
from ratchet.store.outbox import Event, put
from ratchet.store.persons import promote
from ratchet.yaml_files import read_yaml

AWAITS = "awaits"  # key of a decision by rule that is up to a person
KEPT, NEEDED, RULE = "model.kept", "approval.needed", "rule"


@dataclass(frozen=True)
class Waiting:
    """A version that its run's rule promoted and nobody has answered for; `reasons` are the rule's, `champion` is the line's now."""

    version: str
    line: str
    run: str
    round: int
    reasons: list[str]
    champion: str | None


def by_person(workspace: Path) -> bool:
    """Whether the run's settings want a person to approve what becomes champion of its line."""
    path = workspace / "params.yaml"
    return path.is_file() and (read_yaml(path) or {}).get("approval") == "person"


def waiting(root: Path) -> list[Waiting]:
    """What waits for a person, oldest first; of a run only the last version, since it came of those before."""
    registry = root / "registry"
    of_line, last = champions(registry), {}
    for card in read_cards(registry):
        for entry in card["decisions"]:
            if entry.get(AWAITS) and entry["round"] >= last.get((entry["run"], entry["line"]), (-1,))[0]:
                last[entry["run"], entry["line"]] = (entry["round"], card, entry)
    found = [(card, entry) for _, card, entry in last.values() if not _is_answered(root, card, entry, of_line)]
    return [
        Waiting(card["version"], entry["line"], entry["run"], entry["round"], entry["reasons"], of_line.get(entry["line"]))
        for card, entry in sorted(found, key=lambda one: one[1]["at"])
    ]


def answer(root: Path, version: str, approved: bool, reason: str, by: str, line: str | None = None) -> dict[str, Any]:
    """Keeps a person's answer and does what it says: the version becomes champion of its line, or the champion stays.

    Returns the answer. Raises RatchetError for an empty reason and a version that waits for nobody.
    """
    if not reason.strip():
        raise RatchetError("--reason: is empty; say why, it stays on record with the version")
    found = find(root / "registry", version)["version"]
    open_ = waiting(root)
    mine = [one for one in open_ if one.version == found and line in (None, one.line)]
    if not mine:
        there = ", ".join(f"{one.version} (line {one.line})" for one in open_) or "none"
        raise RatchetError(f"version {found} waits for nobody's answer (waiting: {there}); `ratchet promote` makes a version champion unasked")
    if approved and weights_of(root, read_card(root / "registry", found)) is None:
        raise RatchetError(f"version {found}: its weights are no longer here; run `dvc checkout` in its run's folder, then answer again")
    one = mine[-1]
    value = {"version": found, "line": one.line, "run": one.run, "round": one.round, "approved": approved, "reason": reason.strip(), "by": by}
    write_json(_path(root, one.line, found), value | {"at": datetime.now(UTC).isoformat(timespec="microseconds")})
    settle(root)
    return value


def answer_of(root: Path, line: str, version: str) -> dict[str, Any] | None:
    """The answer about a version, if there is one."""
    path = _path(root, line, version)
    return read_json(path) if path.is_file() else None


def settle(root: Path) -> None:
    """Does what answers say and was not done yet, for instance because a kill came between."""
    registry = root / "registry"
    for path in sorted((registry / "approvals").glob("*.json")):
        value = read_json(path)
        card = read_card(registry, value["version"])
        done = any(entry["by"] != RULE and entry["line"] == value["line"] and entry["at"] >= value["at"] for entry in card["decisions"])
        if done:
            continue
        if not value["approved"]:
            _refuse(root, card, value)
        elif champions(registry).get(value["line"]) != value["version"] and weights_of(root, card) is not None:
            promote(root, value["version"], value["reason"], value["by"], value["line"])


def needed(run_id: str, k: int, record: dict[str, Any]) -> Event:
    """The event about a decision that waits for a person."""
    version = record["candidate"]["version"]
    text = f"round {k}: {version} is better than the champion of its run and waits for a person, `ratchet approve {version}`; "
    return Event(NEEDED, run_id, k, record["line"], version, text + "; ".join(record["reasons"]), {"champion": record["champion"]["version"]})


def _refuse(root: Path, card: Card, value: dict[str, Any]) -> None:
    registry, line = root / "registry", value["line"]
    with locked(root, "champions"):
        stays = champions(registry).get(line)
        entry: dict[str, Any] = {"line": line, "event": KEPT, "promoted": False, "stop": None, "reasons": [value["reason"]], "comparison": None}
        entry |= {"alpha": None, "waived": [], "run": value["run"], "round": value["round"], "by": value["by"], "candidate": value["version"]}
        append_decision(registry, card["version"], entry | {"champion": stays, "previous": stays, "decided": value["at"]})
    text = f"refused {value['version']}, by {value['by']}: {value['reason']}"
    put(root, Event(KEPT, value["run"], value["round"], line, value["version"], text, {"champion": stays}))


def _is_answered(root: Path, card: Card, entry: dict[str, Any], of_line: dict[str, str]) -> bool:
    if of_line.get(entry["line"]) == card["version"] or answer_of(root, entry["line"], card["version"]) is not None:
        return True
    later = [one for one in card["decisions"] if one["line"] == entry["line"] and one["at"] > entry["at"]]
    return any(one["by"] != RULE for one in later)


def _path(root: Path, line: str, version: str) -> Path:
    return root / "registry" / "approvals" / f"{line}-{version}.json"
