"""Events that must go out once, as files: written first, delivered when somebody listens, kept until then.

`.ratchet/outbox/ID.json` waits, `delivered/ID.json` was taken by Prefect's API, and `alerts/ID.json` says of each receiver of alerts
(monitoring/alerts.py) what became of it there.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.files import read_json, sha256_json, write_json
from ratchet.store.locks import locked

KINDS = (
    "check.failed", "drift.detected", "model.promoted", "model.kept", "model.regression", "model.rolled_back", "stage.failed", "approval.needed",
)  # fmt: skip
HANDED, SENT, FAILED, MUTED = "handed", "sent", "failed", "muted"  # states of a delivery


@dataclass(frozen=True)
class Event:
    """Something a person may want to hear of.

    `kind` is one of KINDS, `text` one sentence, `data` what the text was made of. `at` is when it was put, and no part of `id`.
    """

    kind: str
    run: str
    round: int | None
    line: str | None
    version: str | None
    text: str
    data: dict[str, Any] = field(default_factory=dict)
    at: str = ""

    @property
    def id(self) -> str:
        """16 hex over all but the clock: the same thing happening once is one id, however often it is seen."""
        return sha256_json({key: value for key, value in asdict(self).items() if key != "at"})[:16]


@dataclass(frozen=True)
class Delivery:
    """What became of an event at one receiver of alerts. `state`: `handed` to Prefect's automation, whose answer is not known yet;
    `sent`, the receiver took it; `failed`, it did not, and is tried again at `next`, or never where that is empty; `muted`, a person
    paused the automation. Times are ISO 8601 in UTC; `since` is when it was first tried, `at` when it was tried last.
    """

    state: str
    since: str
    at: str
    attempts: int = 1
    next: str = ""
    error: str = ""


def put(root: Path, event: Event) -> bool:
    """Puts an event of the checkout `root`; False where it waits already or was delivered. Raises RatchetError for another kind."""
    if event.kind not in KINDS:
        raise RatchetError(f"event {event.kind!r} is none of {', '.join(KINDS)}; use one of these")
    waiting, delivered = _paths(root, event.id)
    with locked(root, "outbox"):
        if waiting.exists() or delivered.exists():
            return False
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        write_json(waiting, asdict(event) | {"at": now, "id": event.id})
    return True


def pending(root: Path) -> list[Event]:
    """What still has to be delivered, oldest first."""
    with locked(root, "outbox"):
        return _read_all(_folder(root))


def delivered(root: Path) -> list[Event]:
    """What was delivered, oldest first."""
    with locked(root, "outbox"):
        return _read_all(_folder(root) / "delivered")


def mark_delivered(root: Path, event_id: str) -> None:
    """Keeps the event as delivered, so that it never goes out again; twice is once. Raises RatchetError for an unknown id."""
    waiting, done = _paths(root, event_id)
    with locked(root, "outbox"):
        if waiting.exists():
            done.parent.mkdir(parents=True, exist_ok=True)
            os.replace(waiting, done)
        elif not done.exists():
            raise RatchetError(f"{waiting}: no such event; `ratchet sync` puts events into the outbox")


def read(root: Path, event_id: str) -> Event | None:
    """The event, waiting or delivered; None where it is neither."""
    with locked(root, "outbox"):
        return next((_event(path) for path in _paths(root, event_id) if path.is_file()), None)


def deliveries(root: Path, settled: bool = True) -> dict[str, dict[str, Delivery]]:
    """{event id: {receiver: Delivery}} of all events that some receiver was to get; without `settled` only where there is more to do."""
    folders = [_alerts(root), *([_alerts(root) / "settled"] if settled else [])]
    with locked(root, "outbox"):
        paths = [path for folder in folders for path in sorted(folder.glob("*.json")) if not path.name.startswith(".")]
        return {path.stem: _read_deliveries(path) for path in paths}


def note_deliveries(root: Path, event_id: str, changed: dict[str, Delivery], settled: bool) -> None:
    """Keeps what became of an event at some receivers, in place of what was known of it there. `settled`: nothing more will be tried
    at any receiver, so that whoever looks for work need not read it."""
    folder = _alerts(root)
    there, other = (folder / "settled", folder) if settled else (folder, folder / "settled")
    with locked(root, "outbox"):
        known = {}
        for path in (other / f"{event_id}.json", there / f"{event_id}.json"):
            known |= _read_deliveries(path) if path.is_file() else {}
        write_json(there / f"{event_id}.json", {name: asdict(one) for name, one in (known | changed).items()})
        (other / f"{event_id}.json").unlink(missing_ok=True)


def stage_failed(run: str, stage: str, detail: str, attempt: str = "") -> Event:
    """A stage that ended with an error. `attempt` (any text, such as a start time) tells a second failure from the first one seen twice."""
    return Event("stage.failed", run, None, None, None, f"stage {stage} failed: {detail}", {"stage": stage, "attempt": attempt})


def _folder(root: Path) -> Path:
    return root / ".ratchet" / "outbox"


def _alerts(root: Path) -> Path:
    return _folder(root) / "alerts"


def _read_deliveries(path: Path) -> dict[str, Delivery]:
    try:
        return {name: Delivery(**value) for name, value in read_json(path).items()}
    except (AttributeError, TypeError):
        raise RatchetError(f"{path}: says of no receiver what became of an alert; delete it, what was not taken is sent again") from None


def _paths(root: Path, event_id: str) -> tuple[Path, Path]:
    return _folder(root) / f"{event_id}.json", _folder(root) / "delivered" / f"{event_id}.json"


def _read_all(folder: Path) -> list[Event]:
    events = [_event(path) for path in folder.glob("*.json") if not path.name.startswith(".")]
    return sorted(events, key=lambda event: (event.at, event.id))


def _event(path: Path) -> Event:
    value = read_json(path)
    if not isinstance(value, dict) or "kind" not in value or value.get("id") != path.stem:
        raise RatchetError(f"{path}: is no event; delete it, `ratchet sync` puts it again")
    return Event(**{key: item for key, item in value.items() if key != "id"})
