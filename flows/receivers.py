"""Receivers of alerts at Prefect: a block that holds each one's address, an automation that sends to it, and sending without one.

All of it is found by names that come from the checkout and from prefect.yaml, so that registering again changes nothing.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from flows.quiet import prepare_prefect
from monitoring.alerts import FILE, Receiver, message, read_receivers
from ratchet.errors import RatchetError
from ratchet.store.index import checkout_id

SEND_S = 10.0  # that a receiver may take
STARTS = "a regression starts evolve"
# what an event carries for the automation's templates (flows/events.py): what a webhook is sent, and what people read
BODY, SUBJECT, TEXT = "{{ event.payload.alert | tojson }}", "{{ event.payload.subject }}", "{{ event.payload.said }}"


class NoAddress(RatchetError):
    """Nobody has said where a receiver is."""


class NotTaken(Exception):
    """A receiver did not take an alert; the text says why, without its address."""


def automation_name(root: Path, what: str) -> str:
    """Names of one checkout's automations begin alike, and no other checkout's do so at a server that several share."""
    return f"{_mark(root)}: {what}"


def tells(receiver: str) -> str:
    return f"tell {receiver}"


def register(root: Path, client: Any, evolve: UUID | None, starts: dict[str, Any] | None) -> tuple[list[str], list[str]]:
    """Makes or renews blocks and automations of the checkout, inside a Prefect client's settings; removes automations whose receiver is no
    longer in prefect.yaml. An automation that a person paused stays paused.

    `starts` are parameters of the deployment `evolve` that a regression found by the monitor starts; None starts nothing. Returns
    (receivers that are told, notes about those that are not). Raises RatchetError for prefect.yaml's mistakes and a block that is not there.
    """
    from prefect.events.actions import CallWebhook, RunDeployment, SendNotification

    told, notes, wanted = [], [], {}
    for receiver in read_receivers(root):
        try:
            block = _block_id(root, client, receiver)
        except NoAddress as error:
            notes.append(str(error))
            continue
        if receiver.kind == "webhook":
            action: Any = CallWebhook(block_document_id=block, payload=BODY)
        else:
            action = SendNotification(block_document_id=block, subject=SUBJECT, body=TEXT)
        wanted[automation_name(root, tells(receiver.name))] = _automation(root, tells(receiver.name), receiver.events, {}, action)
        told.append(receiver.name)
    if starts is not None and evolve is not None:
        action = RunDeployment(source="selected", deployment_id=evolve, parameters=starts)
        wanted[automation_name(root, STARTS)] = _automation(root, STARTS, ["model.regression"], {"ratchet.source": "monitor"}, action)
    there = {one.name: one for one in client.read_automations() if one.name.startswith(f"{_mark(root)}: ")}
    for name, automation in wanted.items():
        _renew(client, automation, there.get(name))
    for name in there.keys() - wanted.keys():
        client.delete_automation(there[name].id)
    return told, notes


def send(root: Path, receiver: Receiver, body: dict[str, Any]) -> None:
    """Sends an alert to one receiver, past Prefect's automations. Raises NoAddress, or NotTaken."""
    try:
        if receiver.kind == "webhook":
            _post(_loaded(root, receiver), body)
        else:
            _notify(_loaded(root, receiver), *message(body))
    except (RatchetError, NotTaken):
        raise
    except Exception as error:  # of anybody's mail or chat library; a receiver must not end a run
        raise NotTaken(type(error).__name__) from error


def _post(block: Any, body: dict[str, Any]) -> None:
    import httpx

    try:
        answer = httpx.request(
            block.method, block.url.get_secret_value(), headers=block.headers.get_secret_value(), content=json.dumps(body), timeout=SEND_S,
            verify=block.verify,
        )  # fmt: skip
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NotTaken(_without(str(error), block.url.get_secret_value()) or type(error).__name__) from None
    if answer.status_code >= 300:
        raise NotTaken(f"answered {answer.status_code}")


def _notify(block: Any, subject: str, text: str) -> None:
    from prefect.blocks.abstract import NotificationError

    try:
        with block.raise_on_failure():
            block.notify(text, subject=subject)
    except NotificationError as error:
        raise NotTaken(_without(str(error.log), *_addresses(block)) or "the notification was not taken") from None


def _addresses(block: Any) -> list[str]:
    secrets = [getattr(block, name, None) for name in ("url", "api_key")]
    return [one.get_secret_value() for one in secrets if one is not None]


def _without(text: str, *secrets: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _mark(root: Path) -> str:
    return f"ratchet {checkout_id(root)[:6]}"


def _block_name(root: Path, receiver: Receiver) -> str:
    return receiver.block or f"ratchet-{checkout_id(root)[:6]}-{receiver.name}"


def _kind(receiver: Receiver) -> Any:
    """The block class of a receiver, one of Prefect's own."""
    prepare_prefect()
    from prefect.blocks import notifications
    from prefect.blocks.webhook import Webhook

    if receiver.kind == "webhook":
        return Webhook
    # Prefect has no block for a mail server; that of Slack hands every other address to Apprise as it is, and Apprise sends mail
    return notifications.SendgridEmail if receiver.sender else notifications.SlackWebhook


def _made(receiver: Receiver) -> Any | None:
    """The block that the receiver's variable makes; None where it is not set. Raises RatchetError where it holds no address."""
    from pydantic import ValidationError

    given = os.environ.get(receiver.variable or "", "").strip()
    if not given:
        return None
    _check(receiver, given)
    kind = _kind(receiver)
    try:
        if receiver.sender:
            return kind(api_key=given, sender_email=receiver.sender, to_emails=receiver.to)
        return kind(url=given)
    except (ValidationError, ValueError, TypeError):  # their texts hold the address
        raise RatchetError(f"{FILE}: alerts: {receiver.name}: {receiver.variable} holds nothing that works for {receiver.kind}; correct it") from None


def _check(receiver: Receiver, address: str) -> None:
    schemes = ("http://", "https://") if receiver.kind in ("webhook", "slack") else ("mailto://", "mailtos://")
    if receiver.sender is None and not address.startswith(schemes):
        raise RatchetError(
            f"{FILE}: alerts: {receiver.name}: {receiver.variable} holds no address of a {receiver.kind}; it begins with {' or '.join(schemes)}"
        )


def _block_id(root: Path, client: Any, receiver: Receiver) -> UUID:
    """The block at Prefect, saved where it is new or its address changed. Raises NoAddress."""
    from prefect.exceptions import ObjectNotFound

    made, name = _made(receiver), _block_name(root, receiver)
    try:
        there = client.read_block_document_by_name(name, _kind(receiver).get_block_type_slug(), include_secrets=True)
    except ObjectNotFound:
        there = None
    if made is None:
        if there is None:
            raise NoAddress(_nowhere(receiver))
        return there.id
    if there is None or any(there.data.get(key) != value for key, value in _plain_values(made).items()):
        made.save(name, overwrite=True)
        there = client.read_block_document_by_name(name, made.get_block_type_slug())
    return there.id


def _plain_values(block: Any) -> dict[str, Any]:
    values = {name: getattr(block, name) for name in ("url", "api_key", "sender_email", "to_emails") if hasattr(block, name)}
    return {name: one.get_secret_value() if hasattr(one, "get_secret_value") else one for name, one in values.items()}


def _loaded(root: Path, receiver: Receiver) -> Any:
    """The receiver's block, from its variable or from Prefect. Raises NoAddress."""
    made = _made(receiver)
    if made is not None:
        return made
    kind: Any = _kind(receiver)
    load: Callable[[str], Any] = kind.load
    try:
        return load(_block_name(root, receiver))
    except ValueError:  # Prefect's word for no such block
        raise NoAddress(_nowhere(receiver)) from None


def _nowhere(receiver: Receiver) -> str:
    where = f"set {receiver.variable}" if receiver.variable else f"Prefect has no block {receiver.block} of this kind; make it in its UI (Blocks)"
    return f"{FILE}: alerts: {receiver.name} is told nothing, for nothing says where it is; {where}"


def _automation(root: Path, what: str, kinds: Sequence[str], labels: dict[str, str], action: Any) -> Any:
    from datetime import timedelta

    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    trigger = EventTrigger(
        expect={f"ratchet.{kind}" for kind in kinds},
        match={"prefect.resource.id": "ratchet.*", "ratchet.checkout": checkout_id(root), **labels},
        posture=Posture.Reactive, threshold=1, within=timedelta(0),
    )  # fmt: skip
    return AutomationCore(
        name=automation_name(root, what), description=f"Made by `ratchet serve` of {root} from its {FILE}", enabled=True, trigger=trigger, actions=[action]
    )


def _renew(client: Any, wanted: Any, there: Any | None) -> None:
    if there is None:
        client.create_automation(wanted)
    elif _content(there) != _content(wanted):
        client.update_automation(there.id, wanted.model_copy(update={"enabled": there.enabled}))


def _content(automation: Any) -> dict[str, Any]:
    value = automation.model_dump(mode="json", include={"name", "description", "trigger", "actions"})
    value["trigger"] = {key: sorted(item) if key == "expect" else item for key, item in value["trigger"].items() if key != "id"}
    return value
