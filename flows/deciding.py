"""`ratchet promote` and `ratchet rollback`: decisions by a person."""

import getpass
from typing import Any

from flows.commands import root
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


def person() -> str:
    """git's user.name in the checkout, else the login name."""
    try:
        return git(root(), "config", "user.name").strip() or getpass.getuser()
    except RatchetError:  # no git, or no name in it
        return getpass.getuser()


def _tell(decision: dict[str, Any]) -> None:
    before = f" instead of {decision['previous']}" if decision["previous"] else ""
    print(f"{decision['champion']} is champion of line {decision['line']}{before}, decided by {decision['by']}: {decision['reasons'][0]}")
