"""What `ratchet serve` does beside its worker: brings events out of the outbox, follows alerts, and asks for approvals.

So a decision in a terminal, a bare `dvc repro` with `ratchet sync`, or a run that was killed reach people as soon as a server is there.
"""

import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows import alerting
from ratchet.errors import RatchetError

EVERY_S = 1.0
ASK_EVERY = 4  # turns between looks for approvals


def register_alerts(root: Path, url: str, evolve: str | None, starts: dict[str, Any] | None) -> tuple[list[str], list[str]]:
    """Blocks and automations of prefect.yaml's `alerts` and `on_regression` at Prefect's API; `evolve` is the deployment `FLOW/NAME`.

    Returns (receivers that are told, notes about the others). Raises RatchetError where Prefect refuses something.
    """
    from flows import receivers
    from flows.registering import api

    with api(url, "an automation") as client:
        deployment = client.read_deployment_by_name(evolve).id if evolve else None
        return receivers.register(root, client, deployment, starts)


@contextmanager
def caring(root: Path, url: str, questions: str | None) -> Iterator[None]:
    """A thread that takes care of the checkout for as long as the block lasts. `questions` is the deployment that asks for approvals."""
    stop = threading.Event()
    thread = threading.Thread(target=_care, args=(root, url, questions, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


def _care(root: Path, url: str, questions: str | None, stop: threading.Event) -> None:
    from prefect import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows import approving, events

    turn, before = 0, ""
    with temporary_settings({PREFECT_API_URL: url}):
        while not stop.wait(EVERY_S):
            said = ""
            try:
                events.deliver(root)
                alerting.follow(root)
                if questions and turn % ASK_EVERY == 0:
                    with get_client(sync_client=True) as client:
                        approving.ask(root, client, questions)
            except Exception as error:  # noqa: BLE001  what goes wrong now goes right in a later turn, or is shown by whoever runs into it
                said = str(error) if isinstance(error, RatchetError) else traceback.format_exc()
                if said != before:
                    _note(root, said)
            turn, before = turn + 1, said


def _note(root: Path, text: str) -> None:
    path = root / ".ratchet" / "serve" / "caretaker.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
