"""Delivers the outbox as Prefect events. An event is marked only after the API took it, and kept until then."""

import uuid
from pathlib import Path
from typing import Any

from flows import alerting
from flows.links import link_to
from monitoring import alerts
from ratchet.errors import RatchetError
from ratchet.store import outbox
from ratchet.store.index import checkout_id
from ratchet.store.locks import locked

PAGE = 50  # events that Prefect tells of at once
MAX_DATA = 20_000  # characters; Prefect refuses large events
_NAMESPACE = uuid.UUID("6f0c2a6e-5d0f-4b52-9c2b-7f1f4a1d7f3e")


def deliver(root: Path) -> int:
    """Posts what is pending, oldest first, and returns how many events are marked as delivered now.

    `emit_event` only queues and its success is never known, so events are posted. Their Prefect id follows from the outbox's; what
    Prefect has already (a kill came between taking and marking) is not sent again. Raises RatchetError where the API refuses.
    """
    if not outbox.pending(root):
        return 0
    import httpx
    from prefect import get_client

    receivers = alerts.read_receivers(root)
    with locked(root, "deliver"):  # a run and `ratchet serve` may both be at it; Prefect would take an event twice
        pending = outbox.pending(root)
        try:
            with get_client(sync_client=True) as client:
                known = _known(client, [str(prefect_id(event)) for event in pending])
                for event in pending:
                    if str(prefect_id(event)) not in known:
                        _post(client, root, event)
                    alerting.hand_over(root, event, alerts.subscribed(receivers, event))
                    outbox.mark_delivered(root, event.id)
        except httpx.HTTPError as error:
            raise RatchetError(f"Prefect's API did not take an event ({error}); it stays in the outbox and goes with the next one") from error
    return len(pending)


def prefect_id(event: outbox.Event) -> uuid.UUID:
    """The same for the same event of the outbox."""
    return prefect_id_of(event.id)


def prefect_id_of(event_id: str) -> uuid.UUID:
    return uuid.uuid5(_NAMESPACE, event_id)


def prefect_event(root: Path, event: outbox.Event) -> Any:
    """`ratchet.KIND` about the resource `ratchet.run.ID`, with text, line, round, version, link and data as payload, and what receivers of
    alerts are sent."""
    from prefect.events import Event, Resource

    # labels are what automations tell events apart by: of which checkout, and whether a run or the monitor speaks
    source = event.data.get("source", "run")
    resource = {"prefect.resource.id": f"ratchet.run.{event.run}", "prefect.resource.name": event.run}
    resource |= {"ratchet.checkout": checkout_id(root), "ratchet.source": source}
    body = alerts.alert(event, link_to(root, event))
    subject, said = alerts.message(body)
    data = event.data if len(str(event.data)) <= MAX_DATA else {}
    payload = {name: body[name] for name in ("text", "run", "line", "round", "version", "link")} | {"data": data}
    payload |= {"alert": body, "subject": subject, "said": said}
    values = {"occurred": event.at} if event.at else {}
    return Event(id=prefect_id(event), event=f"ratchet.{event.kind}", resource=Resource(resource), payload=payload, **values)


def _known(client: Any, ids: list[str]) -> set[str]:
    """Those of `ids` that Prefect has stored; it stores them in batches, within some five seconds."""
    found: set[str] = set()
    for place in range(0, len(ids), PAGE):
        answer = client.request("POST", "/events/filter", json={"filter": {"id": {"id": ids[place : place + PAGE]}}, "limit": PAGE})
        found |= {event["id"] for event in answer.raise_for_status().json()["events"]}
    return found


def _post(client: Any, root: Path, event: outbox.Event) -> None:
    client.request("POST", "/events", json=[prefect_event(root, event).model_dump(mode="json")]).raise_for_status()
