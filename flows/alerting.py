"""Follows each alert until its receiver has it. Prefect's automations send once; what they did not bring is sent again from here."""

import time
from pathlib import Path
from typing import Any

from flows import receivers
from flows.links import link_to
from monitoring import alerts
from ratchet.errors import RatchetError
from ratchet.store import outbox
from ratchet.store.locks import locked
from ratchet.store.outbox import HANDED, MUTED, SENT, Delivery, Event

PATIENCE_S = 45.0  # after that an automation that said nothing has not sent
POLL_S = 0.5
SENT_EVENT, FAILED_EVENT = "prefect.automation.action.executed", "prefect.automation.action.failed"


def hand_over(root: Path, event: Event, told: list[alerts.Receiver]) -> None:
    """Notes that Prefect has the event for these receivers, those aside of whom something is known already."""
    known = outbox.deliveries(root).get(event.id, {}) if told else {}
    now = alerts.utc()
    new = {one.name: alerts.handed(now) for one in told if one.name not in known}
    if new:
        outbox.note_deliveries(root, event.id, new, settled=False)


def follow(root: Path, wait_s: float = 0.0) -> int:
    """Asks Prefect what became of alerts, and sends those again that are due; returns how many are still to be settled.

    `wait_s` is how long to wait for those that Prefect has just got. Raises RatchetError where Prefect's API does not answer; receivers
    that do not answer are noted.
    """
    end = time.monotonic() + wait_s
    while True:
        waiting = _step(root)
        if not waiting or time.monotonic() > end:
            return len(outbox.deliveries(root, settled=False))
        time.sleep(POLL_S)


def _step(root: Path) -> bool:
    """One look at all that is open; True where Prefect has some of which nothing is known yet."""
    with locked(root, "alerts"):  # a run and `ratchet serve` may both follow; nobody is to get anything twice
        return _look(root)


def _look(root: Path) -> bool:
    waiting = False
    found = {event_id: ones for event_id, ones in outbox.deliveries(root, settled=False).items() if any(_asks(one) for one in ones.values())}
    if not found:
        return False
    known = {one.name: one for one in alerts.read_receivers(root)}
    import httpx
    from prefect import get_client

    try:
        with get_client(sync_client=True) as client:
            said = _outcomes(root, client, found)
            automations = {one.name: one for one in client.read_automations()}
    except httpx.HTTPError as error:
        raise RatchetError(f"Prefect's API does not say what became of alerts ({type(error).__name__}); they are followed later") from error
    for event_id, ones in found.items():
        event = outbox.read(root, event_id)
        changed = {}
        for name, delivery in ones.items():
            if event is None or name not in known:
                changed[name] = Delivery(MUTED, delivery.since, alerts.utc().isoformat(), delivery.attempts, error="no longer in prefect.yaml")
                continue
            automation = automations.get(receivers.automation_name(root, receivers.tells(name)))
            changed[name] = _next(root, event, known[name], delivery, said.get((event_id, name)), automation)
        changed = {name: one for name, one in changed.items() if one != ones[name]}
        everything = ones | changed
        waiting |= any(one.state == HANDED for one in everything.values())
        if changed:
            outbox.note_deliveries(root, event_id, changed, settled=all(map(alerts.is_settled, everything.values())))
    return waiting


def _asks(delivery: Delivery) -> bool:
    return delivery.state == HANDED or alerts.is_due(delivery, alerts.utc())


def _next(root: Path, event: Event, receiver: alerts.Receiver, before: Delivery, said: str | None, automation: Any | None) -> Delivery:
    """`said` is "" where the automation brought it, its error where it did not, None where it says nothing."""
    now = alerts.utc()
    if before.state != HANDED:
        return _again(root, event, receiver, before) if alerts.is_due(before, now) else before
    if said is not None:
        return alerts.missed(before, said, now) if said else alerts.taken(before, now)
    if automation is not None and not automation.enabled:
        return Delivery(MUTED, before.since, now.isoformat(), 0, error="its automation is paused")
    age = (now - alerts.datetime.fromisoformat(before.since)).total_seconds()
    return _again(root, event, receiver, before) if automation is None or age > PATIENCE_S else before


def _again(root: Path, event: Event, receiver: alerts.Receiver, before: Delivery) -> Delivery:
    try:
        receivers.send(root, receiver, alerts.alert(event, link_to(root, event)))
    except (RatchetError, receivers.NotTaken) as error:
        return alerts.missed(before, str(error), alerts.utc())
    tries = before.attempts + (before.state != HANDED)
    return Delivery(SENT, before.since, alerts.utc().isoformat(), tries)


def _outcomes(root: Path, client: Any, found: dict[str, dict[str, Delivery]]) -> dict[tuple[str, str], str]:
    """{(event, receiver): "" or what went wrong} as Prefect's automations say. A webhook that answers with an error counts as brought there,
    so its status is looked at."""
    from flows.events import prefect_id_of

    ids = {str(prefect_id_of(event_id)): event_id for event_id, ones in found.items() if any(one.state == HANDED for one in ones.values())}
    if not ids:
        return {}
    names = {receivers.automation_name(root, receivers.tells(name)): name for ones in found.values() for name in ones}
    wanted = {"event": {"name": [SENT_EVENT, FAILED_EVENT]}, "related": {"id": [f"prefect.event.{one}" for one in ids]}}
    answer = client.request("POST", "/events/filter", json={"filter": wanted, "limit": 50})
    said = {}
    for event in answer.raise_for_status().json()["events"]:
        name = names.get(event["resource"].get("prefect.resource.name"))
        about = [one["prefect.resource.id"].removeprefix("prefect.event.") for one in event["related"]]
        for event_id in [ids[one] for one in about if one in ids]:
            if name is not None:
                said[event_id, name] = _trouble(event)
    return said


def _trouble(event: dict[str, Any]) -> str:
    payload = event["payload"]
    if event["event"] == FAILED_EVENT:
        return str(payload.get("reason") or "Prefect's automation failed")
    status = payload.get("status_code")
    return f"answered {status}" if isinstance(status, int) and status >= 300 else ""
