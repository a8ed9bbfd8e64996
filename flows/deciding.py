"""`ratchet promote`, `ratchet rollback` and `ratchet approve`: decisions by a person."""

import getpass
from typing import Any

from flows.commands import root, show
from flows.text import one_line
from flows.workspace import git
from ratchet.errors import RatchetError


def promote_version(version: str, reason: str, line: str | None, by: str | None) -> None:
    """`ratchet promote`."""
    from ratchet.store.persons import promote

    _tell(promote(root(), version, reason, by or person(), line))


def roll_back(line: str | None, reason: str, to: str | None, by: str | None) -> None:
    """`ratchet rollback`."""
    from ratchet.store.persons import rollback

    _tell(rollback(root(), reason, by or person(), line, to))


def approve_version(version: str | None, reason: str | None, refuse: bool, line: str | None, by: str | None, json: bool) -> None:
    """`ratchet approve`."""
    from ratchet.store.approvals import answer, waiting

    here = root()
    if version is None:
        if reason or refuse:
            raise RatchetError("VERSION is missing; `ratchet approve` alone lists what waits")
        rows = [
            {"version": one.version, "line": one.line, "run": one.run, "round": one.round, "why": one_line("; ".join(one.reasons))}
            for one in waiting(here)
        ]
        show(rows, ["version", "line", "run", "round", "why"], json, "nothing waits for a person")
        return
    if reason is None:
        raise RatchetError("--reason is missing; say why, it stays on record with the version")
    value = answer(here, version, not refuse, reason, by or person(), line)
    said = f"is champion of line {value['line']}" if value["approved"] else f"does not become champion of line {value['line']}"
    print(f"{value['version']} {said}, decided by {value['by']}: {value['reason']}")


def person() -> str:
    """git's user.name in the checkout, else the login name."""
    try:
        return git(root(), "config", "user.name").strip() or getpass.getuser()
    except RatchetError:  # no git, or no name in it
        return getpass.getuser()


def _tell(decision: dict[str, Any]) -> None:
    before = f" instead of {decision['previous']}" if decision["previous"] else ""
    print(f"{decision['champion']} is champion of line {decision['line']}{before}, decided by {decision['by']}: {decision['reasons'][0]}")
