"""Receivers of alerts: who is told, in which words, when again, and that no address is ever written down."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import alerting, receivers
from flows.links import link_to
from monitoring import alerts
from ratchet.errors import RatchetError
from ratchet.store import outbox
from ratchet.store.outbox import FAILED, HANDED, MUTED, SENT, Delivery, Event

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVENT = Event("model.regression", "run-1", 2, "quickstart", "abc", "worse", {"source": "run"})
TEAM = "{name: team, kind: webhook, variable: TEAM_URL}"


def checkout(root: Path, *entries: str) -> Path:
    (root / "prefect.yaml").write_text("alerts: [" + ", ".join(entries) + "]\n")
    return root


def test_the_receivers_of_prefect_yaml_are_those_it_names_and_the_shipped_one_names_none(tmp_path: Path) -> None:
    (one,) = alerts.read_receivers(checkout(tmp_path, TEAM))
    assert (one.name, one.kind, one.variable) == ("team", "webhook", "TEAM_URL") and "model.kept" not in one.events
    assert alerts.subscribed([one], EVENT) == [one]
    assert alerts.read_receivers(Path(__file__).parents[2]) == [] == alerts.read_receivers(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{name: team, kind: webhook}", "alerts.0: variable: give either it or block"),
        ("{name: team, kind: webhook, variable: 'https://secret'}", "not the name of an environment variable"),
        ("{name: Team!, kind: webhook, variable: A}", "alerts.0: name: 'Team!' is refused"),
        ("{name: team, kind: pager, variable: A}", "alerts.0: kind: 'pager' is refused"),
        ("{name: team, kind: webhook, variable: A, events: [model.regresion]}", "did you mean 'model.regression'"),
        ("{name: team, kind: slack, variable: A, sender: a@b.c, to: [d@e.f]}", "only an e-mail has one"),
        ("{name: team, kind: email, variable: A, sender: a@b.c}", "needs it and `to`"),
        ("{name: team, kind: webhook, variable: A, url: x}", "alerts.0: url"),
        (f"{TEAM}, {TEAM}", "team is there twice"),
    ],
)
def test_a_receiver_that_cannot_work_is_refused_in_one_line_without_its_address(tmp_path: Path, entry: str, said: str) -> None:
    with pytest.raises(RatchetError) as refused:
        alerts.read_receivers(checkout(tmp_path, entry))
    assert said in str(refused.value) and "\n" not in str(refused.value) and "https://secret" not in str(refused.value)


def test_what_a_model_wrote_is_one_harmless_line_in_an_alert(tmp_path: Path) -> None:
    text = "\x1b[31mred\x07 <!channel> \udc80 \u202e" + "x" * 1_000_000 + "\nsecond"
    body = alerts.alert(Event("check.failed", "r", 1, None, None, text), "http://127.0.0.1/x")
    assert len(body["text"]) <= alerts.MAX_TEXT and body["text"].isprintable()
    json.dumps(body).encode()
    subject, said = alerts.message(body)
    assert "<!channel>" not in said and subject == "A check of the data failed (r)" and said.endswith("run r · round 1\nhttp://127.0.0.1/x")


def test_one_that_is_not_taken_is_tried_later_and_later_and_given_up_after_a_week() -> None:
    one, now, waits = alerts.handed(NOW), NOW, []
    while True:
        one = alerts.missed(one, "down", now)
        if not one.next:
            break
        assert not alerts.is_settled(one) and not alerts.is_due(one, now)
        waits.append((datetime.fromisoformat(one.next) - now).total_seconds())
        now = datetime.fromisoformat(one.next)
        assert alerts.is_due(one, now)
    assert waits[:6] == list(alerts.AGAIN_S) and set(waits[6:]) == {alerts.AGAIN_S[-1]}
    assert timedelta(days=6) < now - NOW <= alerts.GIVE_UP and alerts.is_settled(one) and one.state == FAILED


class Client:
    """Stands for Prefect's API: its automations, and what they say became of alerts."""

    def __init__(self, root: Path, events: list[dict[str, Any]], *, enabled: bool = True, there: bool = True) -> None:
        name = receivers.automation_name(root, receivers.tells("team"))
        self.automations = [SimpleNamespace(name=name, enabled=enabled)] if there else []
        about = [{"prefect.resource.id": f"prefect.event.{alerting_id(EVENT)}"}]
        self.events = [{"resource": {"prefect.resource.name": name}, "related": about, "payload": {}, **event} for event in events]

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing."""

    def read_automations(self) -> list[Any]:
        return self.automations

    def request(self, method: str, path: str, json: dict[str, Any]) -> Any:
        return SimpleNamespace(raise_for_status=lambda: SimpleNamespace(json=lambda: {"events": self.events}))


def alerting_id(event: Event) -> str:
    from flows.events import prefect_id

    return str(prefect_id(event))


@pytest.mark.parametrize(
    ("said", "state", "error", "sent"),
    [
        ([], HANDED, "", 0),
        ([{"event": alerting.SENT_EVENT, "payload": {"status_code": 204}}], SENT, "", 0),
        ([{"event": alerting.SENT_EVENT, "payload": {"status_code": 500}}], FAILED, "answered 500", 0),
        ([{"event": alerting.FAILED_EVENT, "payload": {"reason": "ConnectError"}}], FAILED, "ConnectError", 0),
        ("paused", MUTED, "its automation is paused", 0),
        ("gone", SENT, "", 1),
        ("silent", SENT, "", 1),
        ("forgotten", MUTED, "no longer in prefect.yaml", 0),
    ],
)
def test_what_prefects_automation_did_is_noted_and_what_it_did_not_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any, state: str, error: str, sent: int
) -> None:
    """Prefect counts a webhook that answers 500 as called; without an automation, or where it says nothing, the alert is sent from here."""
    import prefect

    root, got = checkout(tmp_path, *([] if said == "forgotten" else [TEAM])), []
    client = Client(root, said if isinstance(said, list) else [], enabled=said != "paused", there=said != "gone")
    monkeypatch.setattr(prefect, "get_client", lambda sync_client: client)
    monkeypatch.setattr(receivers, "send", lambda root, receiver, body: got.append((receiver.name, body["id"])))
    assert outbox.put(root, EVENT)
    outbox.mark_delivered(root, EVENT.id)
    since = alerts.utc() - timedelta(seconds=3600 if said == "silent" else 0)
    outbox.note_deliveries(root, EVENT.id, {"team": alerts.handed(since)}, settled=False)
    assert alerting.follow(root) == (state in (HANDED, FAILED))
    one = outbox.deliveries(root)[EVENT.id]["team"]
    assert (one.state, one.error) == (state, error) and got == [("team", EVENT.id)] * sent
    alerting.follow(root)
    assert outbox.deliveries(root)[EVENT.id]["team"] == one and len(got) == sent


def test_a_receiver_that_is_down_does_not_end_who_tells_it_and_its_address_stays_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (receiver,) = alerts.read_receivers(checkout(tmp_path, TEAM))
    body = alerts.alert(EVENT, None)
    monkeypatch.setenv("TEAM_URL", "http://127.0.0.1:9/s3cret")
    with pytest.raises(receivers.NotTaken) as down:
        receivers.send(tmp_path, receiver, body)
    assert "s3cret" not in str(down.value)
    monkeypatch.setenv("TEAM_URL", "file:///s3cret")
    with pytest.raises(RatchetError, match="TEAM_URL holds no address of a webhook; it begins with http://") as wrong:
        receivers.send(tmp_path, receiver, body)
    assert "s3cret" not in str(wrong.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]


def test_an_alert_leads_to_the_report_of_its_run_or_to_what_the_monitor_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RATCHET_REPORTS_URL", raising=False)
    assert link_to(tmp_path, EVENT) == (tmp_path / "runs/run-1/reports/report.html").as_uri()
    monkeypatch.setenv("RATCHET_REPORTS_URL", "http://127.0.0.1:4201")
    assert link_to(tmp_path, EVENT) == "http://127.0.0.1:4201/runs/run-1"
    look = Event("drift.detected", "run-1", 2, "quickstart", "abc", "drift", {"source": "monitor", "monitor": "0123"})
    assert link_to(tmp_path, look) == "http://127.0.0.1:4201/monitor/0123/report.html"


def test_damaged_notes_about_alerts_are_named(tmp_path: Path) -> None:
    outbox.note_deliveries(tmp_path, EVENT.id, {"team": Delivery(SENT, "a", "b")}, settled=True)
    assert outbox.deliveries(tmp_path, settled=False) == {}
    (path,) = (tmp_path / ".ratchet/outbox/alerts/settled").glob("*.json")
    path.write_text('{"team": {"nonsense": 1}}')
    with pytest.raises(RatchetError, match="says of no receiver"):
        outbox.deliveries(tmp_path)
