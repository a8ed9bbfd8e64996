"""Delivers the outbox as Prefect events. An event is marked only after the API took it, and kept until then."""

import uuid
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.store import outbox

_NAMESPACE = uuid.UUID("6f0c2a6e-5d0f-4b52-9c2b-7f1f4a1d7f3e")


def deliver(root: Path) -> int:
    """Posts what is pending, oldest first, and returns how many events are marked as delivered now.

    `emit_event` only queues and its success is never known, so events are posted. Their Prefect id follows from the outbox's; what
    Prefect has already (a kill came between taking and marking) is not sent again. Raises RatchetError where the API refuses.
    """
    pending = outbox.pending(root)
    if not pending:
        return 0
    import httpx
    from prefect import get_client

    try:
        with get_client(sync_client=True) as client:
            known = _known(client, [str(prefect_id(event)) for event in pending])
            for event in pending:
                if str(prefect_id(event)) not in known:
                    _post(client, event)
                outbox.mark_delivered(root, event.id)
    except httpx.HTTPError as error:
        raise RatchetError(f"Prefect's API did not take an event ({error}); it stays in the outbox and goes with the next one") from error
    return len(pending)


def prefect_id(event: outbox.Event) -> uuid.UUID:
    """The same for the same event of the outbox."""
    return uuid.uuid5(_NAMESPACE, event.id)


def prefect_event(event: outbox.Event) -> Any:
    """`ratchet.KIND` about the resource `ratchet.run.ID`, with text, line, round, version and data as payload."""
    from prefect.events import Event, Resource

    resource = {"prefect.resource.id": f"ratchet.run.{event.run}", "prefect.resource.name": event.run}
    payload = {"text": event.text, "run": event.run, "line": event.line, "round": event.round, "version": event.version, "data": event.data}
    values = {"occurred": event.at} if event.at else {}
    return Event(id=prefect_id(event), event=f"ratchet.{event.kind}", resource=Resource(resource), payload=payload, **values)


def _known(client: Any, ids: list[str]) -> set[str]:
    """Those of `ids` that Prefect has stored; it stores them in batches, within some five seconds."""
    answer = client.request("POST", "/events/filter", json={"filter": {"id": {"id": ids}}, "limit": 50})
    return {event["id"] for event in answer.raise_for_status().json()["events"]}


def _post(client: Any, event: outbox.Event) -> None:
    client.request("POST", "/events", json=[prefect_event(event).model_dump(mode="json")]).raise_for_status()
