"""`ratchet serve` with its server, its worker, and a browser: what the UI's buttons do, whom alerts reach, and what a person approves."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from flows import caretaking, serve
from flows.registering import nightly, read_deployments, register
from ratchet.errors import RatchetError
from ratchet.store import cards, champions, outbox
from tests.flows.test_evolve import is_alive
from tests.monitoring.serve import receivers
from tests.monitoring.serve.conftest import ADDRESSES, HOOK, NAMES, Served, until
from tests.monitoring.serve.pages import click, fill, keep, submit, text, visit
from tests.page.browser import chromium, tab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EVENT = outbox.Event("model.regression", "run-1", 2, "quickstart", "abc", "round 2: worse <!channel> \x1b[31m", {"source": "run"})


def state_of(client: Any, run: Any) -> str:
    return client.read_flow_run(run.id).state.name


def attempts(folder: Path) -> list[str]:
    return [one.get("state") for one in json.loads((folder / "logs/run.json").read_text())["attempts"]]


def test_a_second_serve_of_the_checkout_says_that_one_is_at_work(served: Served) -> None:
    with pytest.raises(RatchetError, match=f"is at work here already .pid [0-9]+, {served.url}"):
        serve.serve(served.checkout, 4999, None, None, [])


def test_forms_have_presets_as_choices_and_refuse_what_cannot_work(served: Served, client: Any) -> None:
    from prefect.exceptions import PrefectHTTPStatusError

    forms = {name: client.read_deployment_by_name(f"{name}/{name}") for name in NAMES}
    fields = forms["evolve"].parameter_openapi_schema["properties"]
    assert list(fields) == ["preset", "rounds", "seed", "settings", "resume", "name"]
    assert fields["preset"]["enum"] == sorted(path.stem for path in (served.checkout / "presets").glob("*.yaml"))
    assert (fields["rounds"]["type"], fields["rounds"]["minimum"]) == ("integer", 1) and fields["settings"]["items"] == {"type": "string"}
    assert all(one["description"] for form in forms.values() for one in form.parameter_openapi_schema["properties"].values())
    for wrong in ({"preset": "nonsense"}, {"rounds": 0}, {"seed": "x"}):
        with pytest.raises(PrefectHTTPStatusError, match="409|422"):
            client.create_flow_run_from_deployment(forms["evolve"].id, parameters=wrong)
    assert {name for name in NAMES if forms[name].global_concurrency_limit} == {"evolve", "harvest", "evaluate", "monitor"}


def test_registering_again_changes_nothing_and_keeps_the_schedules_of_the_ui(served: Served, client: Any) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    before = client.read_deployment_by_name("evolve/evolve")
    deployments, every_night = read_deployments(served.checkout), nightly(served.checkout, "0 3 * * *", "smoke", ["seed=3"])
    client.create_deployment_schedules(before.id, [(CronSchedule(cron="0 5 * * 1"), True)])
    for schedule in (every_night, None):
        assert register(served.checkout, served.api, deployments, schedule) == [f"{name}/{name}" for name in NAMES]
        after = client.read_deployment_by_name("evolve/evolve")
        assert after.id == before.id and after.parameter_openapi_schema == before.parameter_openapi_schema
        there = sorted((one.schedule.cron, one.active) for one in after.schedules)
        assert there == [("0 2 * * *", False), ("0 3 * * *", True), ("0 5 * * 1", True)]
    night = until(lambda: [run for run in client.read_flow_runs() if run.parameters.get("settings") == ["seed=3"]], "runs of the nights to come")
    assert {(run.state.name, run.auto_scheduled, f"{run.expected_start_time:%H:%M}") for run in night} == {("Scheduled", True, "03:00")}
    assert [one.parameters for one in after.schedules if one.slug == "ratchet-serve"] == [{"preset": "smoke", "settings": ["seed=3"]}]
    for one in after.schedules:
        client.delete_deployment_schedule(before.id, one.id)
    with pytest.raises(RatchetError, match="belongs to .*rename the deployments"):
        register(served.checkout.parent, served.api, deployments, None)


def test_a_regression_that_the_monitor_finds_starts_evolve_and_a_runs_own_does_not(served: Served, client: Any) -> None:
    from prefect.client.schemas.actions import WorkPoolUpdate

    client.update_work_pool("ratchet", WorkPoolUpdate(is_paused=True))  # what is started shall not begin
    with receivers.hook(served.hook_port) as got, receivers.mail(served.mail_port):
        for source in ("run", "monitor"):
            assert outbox.put(served.checkout, replace(EVENT, run=source, data={"source": source}))
        started = until(lambda: runs(client), "a run of evolve")
        until(lambda: len(got) == 2 and not outbox.deliveries(served.checkout, settled=False), "both alerts")
        assert [run.parameters for run in runs(client)] == [{"preset": "smoke"}]
    client.delete_flow_run(started[0].id)
    client.update_work_pool("ratchet", WorkPoolUpdate(is_paused=False))


def test_automations_and_blocks_are_there_once_and_a_paused_one_stays_paused(served: Served, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's own blocks: Webhook, Slack Webhook, Sendgrid Email, and an address of a mail server."""

    def again() -> tuple[list[str], list[str]]:
        return caretaking.register_alerts(served.checkout, served.api, "evolve/evolve", {"preset": "smoke"})

    for name in ADDRESSES:
        monkeypatch.setenv(name, served.env[name])
    before = {one.name.partition(": ")[2]: one for one in client.read_automations()}
    assert set(before) == {"tell team", "tell mail", "tell chat", "tell grid", "a regression starts evolve"}
    blocks = {one.id: one.block_type.slug for one in client.read_block_documents()}
    assert sorted(blocks.values()) == ["sendgrid-email", "slack-webhook", "slack-webhook", "webhook"]
    client.pause_automation(before["a regression starts evolve"].id)
    for _ in range(2):
        assert again() == (["team", "mail", "chat", "grid"], [])
    after = {one.name.partition(": ")[2]: one for one in client.read_automations()}
    assert {name: one.id for name, one in after.items()} == {name: one.id for name, one in before.items()}
    assert not after["a regression starts evolve"].enabled and after["tell team"].enabled
    assert {one.id for one in client.read_block_documents()} == blocks.keys()
    monkeypatch.delenv(HOOK)  # a later `ratchet serve` without the variable keeps the address that Prefect has
    assert again()[0][0] == "team"


def test_an_alert_reaches_its_receivers_or_is_kept_shown_and_sent_again(served: Served) -> None:
    """Nobody but `ratchet serve` is at work here: it finds the event in the outbox, Prefect's automations send it, the webhook's receiver
    is down."""
    root = served.checkout
    with receivers.mail(served.mail_port) as mails:
        assert outbox.put(root, EVENT)
        down = until(lambda: delivery(root, EVENT, "team", "failed", "sent", "muted"), "what became of it")
        assert (down.state, down.attempts) == ("failed", 1) and down.next > down.at and "secret" not in down.error
        assert until(lambda: delivery(root, EVENT, "mail", "failed", "sent"), "the mail").state == "sent" and len(mails) == 1
        assert "Subject: A version is worse than its champion (quickstart)" in mails[0] and "/runs/run-1" in mails[0].replace("=\n", "")
        assert "<!channel>" not in mails[0]
    with receivers.hook(served.hook_port) as got:
        until(lambda: got, "the alert, sent again")
        assert until(lambda: delivery(root, EVENT, "team", "sent"), "the note of it").attempts == 2 and len(got) == 1
        (body,) = got
        assert body["event"] == "model.regression" and body["text"] == "round 2: worse <!channel> [31m" and body["id"] == EVENT.id
        assert body["link"].startswith("http://127.0.0.1:") and "/runs/run-1" in body["link"]
        # and where it is up, the automation brings it at once, and nothing does so twice
        second = outbox.Event("stage.failed", "run-1", 3, None, None, "stage harvest@3 failed")
        assert outbox.put(root, second)
        until(lambda: len(got) == 2, "the second alert", every=0.05)
        assert until(lambda: delivery(root, second, "team", "sent"), "its note").attempts == 1 and got[1]["id"] == second.id
    assert outbox.deliveries(root, settled=False) == {} and len(got) == 2


def delivery(root: Path, event: outbox.Event, receiver: str, *states: str) -> outbox.Delivery | None:
    found = outbox.deliveries(root).get(event.id, {}).get(receiver)
    return found if found is not None and found.state in states else None


def test_a_run_of_the_form_is_cancelled_the_waiting_one_resumes_it_and_a_person_approves(served: Served, client: Any, tmp_path: Path) -> None:
    """Two runs of evolve show it all: one is started by the form and hangs, one waits for it and then goes on with its workspace."""
    from prefect.states import Cancelling

    deployment = client.read_deployment_by_name("evolve/evolve")
    hang = served.checkout / "hang-prepare"
    hang.write_text("")
    first = from_the_form(served, client, deployment, tmp_path)
    assert first.parameters["preset"] == "smoke" and first.parameters["rounds"] == 1
    hanging = until(lambda: next(served.checkout.glob("runs/smoke-*/hanging"), None), "the first run's stage")
    workers, folder = until(hanging.read_text, "the stage's processes").split(), hanging.parent
    for one in (hang, folder / hang.name):
        one.unlink()
    second = fired(client, deployment, {"resume": folder.name})
    until(lambda: state_of(client, second) == "AwaitingConcurrencySlot", "the second run to wait")
    assert attempts(folder) == [None] and all(is_alive(pid) for pid in workers)

    client.set_flow_run_state(first.id, Cancelling())
    until(lambda: state_of(client, first) == "Cancelled", "the first run to be cancelled")
    assert not any(is_alive(pid) for pid in workers) and attempts(folder)[0] == "interrupted"
    until(lambda: client.read_flow_run(second.id).state.is_final(), "the second run to end")
    assert state_of(client, second) == "Completed" and attempts(folder) == ["interrupted", "finished"]
    look_at(served, client, second, folder, tmp_path)
    approved_in_the_browser(served, client, tmp_path)


def runs(client: Any) -> list[Any]:
    """All but those that schedules have made for the days to come."""
    return [run for run in client.read_flow_runs() if not run.auto_scheduled]


def fired(client: Any, deployment: Any, parameters: dict[str, Any]) -> Any:
    """The run of a schedule whose time has come; the schedule is gone again."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import IntervalSchedule

    # a time that is over before the server has looked at it is left out, so there is a second one
    soon = IntervalSchedule(interval=timedelta(minutes=2), anchor_date=datetime.now(UTC) + timedelta(seconds=10))
    made = DeploymentScheduleCreate(schedule=soon, active=True, parameters=parameters, slug="soon")
    body = [made.model_dump(mode="json", exclude_none=True)]
    (there,) = client.request("POST", "/deployments/{id}/schedules", path_params={"id": deployment.id}, json=body).json()

    def due() -> Any:
        mine = [one for one in client.read_flow_runs() if one.auto_scheduled and one.parameters.get("resume") == parameters["resume"]]
        return next((one for one in mine if one.state.name != "Scheduled"), None)

    run = until(due, "the schedule to fire")
    client.delete_deployment_schedule(deployment.id, UUID(there["id"]))
    return run


def from_the_form(served: Served, client: Any, deployment: Any, tmp_path: Path) -> Any:
    if chromium() is None:  # the rest can be shown without one; on Debian: apt-get install chromium
        return client.create_flow_run_from_deployment(deployment.id, parameters={"preset": "smoke", "rounds": 1})
    with tab(tmp_path / "profile") as page:
        visit(page, f"{served.url}/deployments/deployment/{deployment.id}/run")
        until(lambda: "Submit" in text(page) and "What to run, a file of presets/" in text(page), "the form")
        keep(page, "prefect-form", tmp_path)
        fields = {"preset": ("select", "smoke"), "rounds": ("input", "1")}
        return submit(page, fields, lambda: next(iter(runs(client)), None))


def look_at(served: Served, client: Any, run: Any, folder: Path, tmp_path: Path) -> None:
    """Artifacts, and the report behind its link."""
    artifacts = {one.key: one for one in client.read_artifacts() if one.flow_run_id == run.id}
    assert {"progress", "evaluation-1", "decision-1", "report"} <= set(artifacts)
    if chromium() is None:
        return
    with tab(tmp_path / "another-profile") as page:
        visit(page, f"{served.url}/runs/flow-run/{run.id}")
        click(page, "Artifacts")
        until(lambda: all(key in text(page).lower() for key in ("progress", "evaluation-1", "decision-1", "report")), "the artifacts")
        keep(page, "prefect-artifacts", tmp_path)
        visit(page, f"{served.url}/artifacts/artifact/{artifacts['report'].id}")
        link = until(
            lambda: page.evaluate("[...document.querySelectorAll('a')].map(e => e.href).find(e => e.endsWith('report.html'))"), "a link"
        )
        assert link.startswith("http://127.0.0.1:") and folder.name in link
        visit(page, link)
        until(lambda: page.evaluate("document.title") == "The report of a run", "the report behind the link")


def approved_in_the_browser(served: Served, client: Any, tmp_path: Path) -> None:
    """`ratchet serve` has asked about the run's version; the answer to the suspended run is on file and on the card, with its reason."""
    registry = served.checkout / "registry"
    assert champions.champions(registry) == {}
    question = until(lambda: next((run for run in runs(client) if run.state.name == "Suspended"), None), "the question")
    version = question.parameters["version"]
    answered_in_the_form(served, client, question, tmp_path)
    until(lambda: client.read_flow_run(question.id).state.is_final(), "the answer")
    assert state_of(client, question) == "Completed" and champions.champions(registry) == {"quickstart": version}
    (answer,) = (registry / "approvals").glob("*.json")
    assert json.loads(answer.read_text())["reason"] == "read twenty episodes"
    assert [one["by"] for one in cards.read_card(registry, version)["decisions"]] == ["rule", "Ada"]


def answered_in_the_form(served: Served, client: Any, question: Any, tmp_path: Path) -> None:
    """Resume shows what is asked and why the rule wants it, above a form."""
    reason, by = "read twenty episodes", "Ada"
    if chromium() is None:
        client.resume_flow_run(question.id, run_input={"approve": True, "reason": reason, "by": by})
        return
    with tab(tmp_path / "third-profile") as page:
        visit(page, f"{served.url}/runs/flow-run/{question.id}")
        click(page, "Resume")
        wanted = ("Submit", f"Shall {question.parameters['version']} ", "above zero")
        until(lambda: all(one in text(page) for one in wanted), "the question and its form")
        fields = {"Approve": ("switch", "on"), "Reason": ("textarea", reason), "By": ("textarea", by)}
        fill(page, fields)
        keep(page, "prefect-approval", tmp_path)
        submit(page, fields, lambda: state_of(client, question) != "Suspended")
