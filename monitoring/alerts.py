"""Who is told of which events, in which words, and when one that was not taken is tried again. What sends is flows/alerting.py.

Receivers stand in prefect.yaml under `alerts`. An address is a secret as often as not, so it stands in an environment variable, or in
a Prefect block that somebody made by hand, and never in that file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ratchet.errors import RatchetError
from ratchet.section import Section
from ratchet.settings_errors import explain
from ratchet.store.outbox import FAILED, HANDED, KINDS, SENT, Delivery, Event
from ratchet.yaml_files import read_yaml

FILE = "prefect.yaml"
EVENTS = ("check.failed", "drift.detected", "model.regression", "model.promoted", "model.rolled_back", "stage.failed", "approval.needed")
AGAIN_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0)  # after each try that failed; the last one again and again
GIVE_UP = timedelta(days=7)
MAX_TEXT = 600
TITLES = {
    "check.failed": "A check of the data failed",
    "drift.detected": "Drift",
    "model.promoted": "A new champion",
    "model.kept": "The champion stays",
    "model.regression": "A version is worse than its champion",
    "model.rolled_back": "Rolled back",
    "stage.failed": "A stage failed",
    "approval.needed": "A version waits for a person",
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLOCK = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  # what Prefect allows as the name of a block


class Receiver(Section):
    """Somebody who is told. Either `variable` or `block` says where."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="a name of yours: lower-case letters, digits and -")
    kind: Literal["webhook", "slack", "email"] = Field(description="webhook posts JSON, slack and email send a text")
    variable: str | None = Field(
        default=None,
        description="environment variable of `ratchet serve` that holds the webhook's or Slack's address; of an e-mail SendGrid's key, or "
        "without a sender the address of your mail server, mailtos://USER:PASSWORD@HOST?from=…&to=…",
    )
    block: str | None = Field(default=None, description="name of a Prefect block of this kind that you made, in place of a variable")
    sender: str | None = Field(default=None, description="of an e-mail by SendGrid: whom it is from")
    to: list[str] = Field(default_factory=list, description="of an e-mail by SendGrid: to whom it goes")
    events: list[str] = Field(default_factory=lambda: list(EVENTS), min_length=1, description="what it is told of")

    @model_validator(mode="after")
    def _known(self) -> Receiver:
        for kind in self.events:
            if kind not in KINDS:
                near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.0)[0]
                raise ValueError(f"events: there is no event {kind!r}; did you mean {near!r}? (all: {', '.join(KINDS)})")
        return self

    @model_validator(mode="after")
    def _where(self) -> Receiver:
        # texts leave the value out: it may be an address that was put in the wrong place
        if (self.variable is None) == (self.block is None):
            raise ValueError("variable: give either it or block, so that there is one address")
        if self.variable is not None and not _VARIABLE.fullmatch(self.variable):
            raise ValueError("variable: not the name of an environment variable; write the name of one that holds the address, never the address")
        if self.block is not None and not _BLOCK.fullmatch(self.block):
            raise ValueError("block: not the name of a Prefect block (lower-case letters, digits, -); write its name, never the address")
        if (self.sender is None) != (not self.to):
            raise ValueError("sender: an e-mail by SendGrid needs it and `to`; leave both out where the variable holds your mail server's address")
        if self.kind != "email" and self.sender is not None:
            raise ValueError(f"sender: only an e-mail has one; leave sender and to out of a {self.kind}")
        return self


def read_receivers(root: Path) -> list[Receiver]:
    """The receivers of the checkout `root`, none without prefect.yaml. Raises RatchetError for one that cannot work or is there twice."""
    path = root / FILE
    value = read_yaml(path) if path.is_file() else {}
    entries = (value.get("alerts") if isinstance(value, dict) else None) or []
    if not isinstance(entries, list):
        raise RatchetError(f"{path}: alerts: is no list; write `- {{name: NAME, kind: webhook, variable: VARIABLE}}` entries")
    found: list[Receiver] = []
    for place, entry in enumerate(entries):
        try:
            found.append(Receiver.model_validate(entry))
        except ValidationError as error:
            raise RatchetError(f"{path}: alerts.{place}: {explain(error, Receiver)}") from None
        if found[-1].name in [one.name for one in found[:-1]]:
            raise RatchetError(f"{path}: alerts.{place}.name: {found[-1].name} is there twice; take another name")
    return found


def subscribed(receivers: Sequence[Receiver], event: Event) -> list[Receiver]:
    """Those that are told of `event`."""
    return [one for one in receivers if event.kind in one.events]


def alert(event: Event, link: str | None) -> dict[str, Any]:
    """What a webhook is sent: `id`, `event`, `title`, `text` (one line, nothing in it moves a cursor), run, line, round, version, at and
    `link`, where to read more."""
    names = ("run", "line", "round", "version", "at")
    said = {"id": event.id, "event": event.kind, "title": TITLES[event.kind], "text": plain(event.text), "link": link}
    return said | {name: getattr(event, name) for name in names}


def message(body: dict[str, Any]) -> tuple[str, str]:
    """(subject, text) of an alert for people. A chat's own marks (`<!channel>`) in a model's text are no marks any more."""
    about = " · ".join(f"{name} {body[name]}" for name in ("line", "run", "round") if body[name] is not None)
    lines = [body["text"].replace("<", "‹").replace(">", "›"), about, body["link"] or ""]
    return f"{body['title']} ({body['line'] or body['run']})", "\n".join(filter(None, lines))


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """One line of printable characters, cut at `limit`: texts quote what models wrote, a megabyte of escape codes as well."""
    kept = " ".join("".join(one if one.isprintable() else " " for one in text[: 8 * limit]).split())
    return kept if len(kept) <= limit else f"{kept[: limit - 1]}…"


def handed(now: datetime) -> Delivery:
    """The first state: Prefect has the event, and its automation sends it."""
    return Delivery(HANDED, now.isoformat(), now.isoformat())


def taken(before: Delivery, now: datetime) -> Delivery:
    """The receiver took it."""
    return replace(before, state=SENT, at=now.isoformat(), next="", error="")


def missed(before: Delivery, error: str, now: datetime) -> Delivery:
    """The receiver did not take it: tried again later and later, and given up a week after the first try."""
    tries = before.attempts if before.state == HANDED else before.attempts + 1
    wait = timedelta(seconds=AGAIN_S[min(tries, len(AGAIN_S)) - 1])
    over = now + wait > datetime.fromisoformat(before.since) + GIVE_UP
    return replace(before, state=FAILED, at=now.isoformat(), attempts=tries, next="" if over else (now + wait).isoformat(), error=plain(error, 200))


def is_due(delivery: Delivery, now: datetime) -> bool:
    """Whether one that failed is to be tried again now."""
    return delivery.state == FAILED and bool(delivery.next) and datetime.fromisoformat(delivery.next) <= now


def is_settled(delivery: Delivery) -> bool:
    """Whether nothing more will be tried."""
    return delivery.state != HANDED and not (delivery.state == FAILED and delivery.next)


def utc() -> datetime:
    """Now."""
    return datetime.now(UTC)
