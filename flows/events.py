"""Delivers the outbox as Prefect events. An event is marked only after the API took it, and kept until then."""

import uuid
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError

_NAMESPACE = uuid.UUID("6f0c2a6e-5d0f-4b52-9c2b-7f1f4a1d7f3e")


def stage_failed(root: Path, run_id: str, stage: str, reason: str) -> None:
    """Puts `stage.failed` into the outbox, once for each time a run fails there."""
    from ratchet.store import outbox

    outbox.put(root, "stage.failed", {"run_id": run_id, "stage": stage, "reason": reason})


def deliver(root: Path) -> int:
    """Posts what is pending, oldest first, and returns how many were taken.

    `emit_event` only queues; its success is not known. So events are posted, with an id that follows from the outbox's: one that
    was taken but not marked, because of a kill in between, is the same event to Prefect. Raises RatchetError where the API refuses.
    """
    from ratchet.store import outbox

    pending = outbox.pending(root)
    if not pending:
        return 0
    from prefect import get_client

    with get_client(sync_client=True) as client:
        for item in pending:
            _post(client, item)
            outbox.mark_delivered(root, [item["id"]])
    return len(pending)


def prefect_event(item: dict[str, Any]) -> Any:
    """A Prefect event of an outbox row {"id", "event", "occurred", "payload"}."""
    from prefect.events import Event, Resource

    payload = item["payload"]
    run_id = str(payload.get("run_id", "unknown"))
    resource = {"prefect.resource.id": f"ratchet.run.{run_id}", "prefect.resource.name": run_id, "prefect.resource.role": "run"}
    values: dict[str, Any] = {"event": f"ratchet.{item['event']}", "resource": Resource(resource), "payload": payload}
    if item.get("occurred"):
        values["occurred"] = item["occurred"]
    return Event(id=uuid.uuid5(_NAMESPACE, str(item["id"])), **values)


def _post(client: Any, item: dict[str, Any]) -> None:
    import httpx

    try:
        answer = client.request("POST", "/events", json=[prefect_event(item).model_dump(mode="json")])
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise RatchetError(f"event {item['event']}: Prefect's API did not take it ({error}); it stays in the outbox") from error
