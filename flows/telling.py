"""`ratchet alerts`: events, and what became of them at each receiver."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.commands import root, show
from monitoring import alerts
from monitoring.alerts import plain
from ratchet.store import outbox
from ratchet.store.outbox import FAILED, MUTED, Delivery


def show_alerts(retry: bool, count: int, json: bool) -> None:
    """`ratchet alerts`."""
    here = root()
    if retry:
        _retry(here)
    told = outbox.deliveries(here)
    events = sorted([*outbox.pending(here), *outbox.delivered(here)], key=lambda event: (event.at, event.id))[-count:]
    waiting = {event.id for event in outbox.pending(here)}
    rows = [
        {
            "at": event.at[:19].replace("T", " "), "event": event.kind, "run": event.run, "text": plain(event.text, 10_000 if json else 100),
            "alerts": {name: _json(one) for name, one in told.get(event.id, {}).items()} if json else _words(told.get(event.id, {})),
            "prefect": "waits" if event.id in waiting else "has it",
        }
        for event in events
    ]  # fmt: skip
    show(rows, ["at", "event", "run", "text", "prefect", "alerts"], json, "no events yet")


def _retry(here: Path) -> None:
    from flows import evolve
    from flows.alerting import follow

    evolve.start_api()
    now = alerts.utc().isoformat()
    for event_id, ones in outbox.deliveries(here).items():
        again = {name: replace(one, state=FAILED, next=now) for name, one in ones.items() if one.state in (FAILED, MUTED)}
        if again:
            outbox.note_deliveries(here, event_id, again, settled=False)
    follow(here)


def _json(one: Delivery) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("state", "attempts", "at", "next", "error")}


def _words(told: dict[str, Delivery]) -> str:
    return ", ".join(f"{name}: {_state(one)}" for name, one in sorted(told.items()))


def _state(one: Delivery) -> str:
    if one.state != FAILED:
        return f"{one.state} ({one.error})" if one.error else one.state
    then = f"again at {one.next[11:16]} UTC" if one.next else "given up"
    return f"not taken, {one.attempts} times ({one.error}), {then}"
