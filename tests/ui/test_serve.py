"""`ratchet serve` through Prefect's API: what the UI's buttons do."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from flows.serve import read_deployments, register
from ratchet.errors import RatchetError
from tests.flows.test_evolve import is_alive
from tests.ui.conftest import REPORT, Served, start, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def state_of(client: Any, run: Any) -> str:
    return client.read_flow_run(run.id).state.name


def run_state(folder: Path) -> str:
    return json.loads((folder / "logs/run.json").read_text())["state"]


def test_a_second_serve_of_the_checkout_says_that_one_is_at_work(served: Served) -> None:
    second = start(served.checkout, served.env, "--port", "4999")
    said = second.communicate(timeout=120)[0]
    assert second.returncode == 2 and "is at work here already" in said and served.url in said and said.count("\n") == 1


def test_forms_have_presets_as_choices_and_refuse_what_cannot_work(served: Served, client: Any) -> None:
    from prefect.exceptions import PrefectHTTPStatusError

    forms = {name: client.read_deployment_by_name(f"{name}/{name}") for name in ("evolve", "evaluate", "compare")}
    fields = forms["evolve"].parameter_openapi_schema["properties"]
    assert list(fields) == ["preset", "rounds", "seed", "settings", "resume", "name"]
    assert fields["preset"]["enum"] == sorted(path.stem for path in (served.checkout / "presets").glob("*.yaml"))
    assert (fields["rounds"]["type"], fields["rounds"]["minimum"]) == ("integer", 1) and fields["settings"]["items"] == {"type": "string"}
    assert all(one["description"] for form in forms.values() for one in form.parameter_openapi_schema["properties"].values())
    for wrong in ({"preset": "nonsense"}, {"rounds": 0}, {"seed": "x"}):
        with pytest.raises(PrefectHTTPStatusError, match="409|422"):
            client.create_flow_run_from_deployment(forms["evolve"].id, parameters=wrong)


def test_registering_again_changes_nothing_and_keeps_the_schedules_of_the_ui(served: Served, client: Any) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    from flows.serve import _schedule

    before = client.read_deployment_by_name("evolve/evolve")
    deployments, nightly = read_deployments(served.checkout), _schedule(served.checkout, "0 2 * * *", "smoke", ["seed=3"])
    client.create_deployment_schedules(before.id, [(CronSchedule(cron="0 5 * * 1"), True)])
    for schedule in (nightly, nightly, None):
        assert register(served.checkout, served.api, deployments, schedule) == ["evolve/evolve", "evaluate/evaluate", "compare/compare"]
        after = client.read_deployment_by_name("evolve/evolve")
        assert after.id == before.id and after.parameter_openapi_schema == before.parameter_openapi_schema
        assert sorted((one.schedule.cron, one.active) for one in after.schedules) == [("0 2 * * *", True), ("0 5 * * 1", True)]
    assert [one.parameters for one in after.schedules if one.slug] == [{"preset": "smoke", "settings": ["seed=3"]}]
    for one in after.schedules:
        client.delete_deployment_schedule(before.id, one.id)
    with pytest.raises(RatchetError, match="belongs to .*rename the deployments"):
        register(served.checkout.parent, served.api, deployments, None)


def test_a_cancelled_run_ends_its_stage_lets_the_next_one_in_and_resumes(served: Served, client: Any) -> None:
    from prefect.states import Cancelling

    deployment = client.read_deployment_by_name("evolve/evolve")
    hang = served.checkout / "hang-prepare"
    hang.write_text("")
    first = client.create_flow_run_from_deployment(deployment.id, parameters={"preset": "smoke", "rounds": 1, "name": "first"})
    hanging = until(lambda: next(served.checkout.glob("runs/first-*/hanging"), None), "the first run's stage")
    workers = until(hanging.read_text, "the stage's processes").split()
    folder = hanging.parent
    hang.unlink()
    # as a schedule does that fires while a run is on
    second = client.create_flow_run_from_deployment(deployment.id, parameters={"preset": "smoke", "rounds": 1, "name": "second"})
    until(lambda: state_of(client, second) == "AwaitingConcurrencySlot", "the second run to wait")
    assert not list(served.checkout.glob("runs/second-*")) and all(is_alive(pid) for pid in workers)

    client.set_flow_run_state(first.id, Cancelling())
    until(lambda: state_of(client, first) == "Cancelled", "the first run to be cancelled")
    assert not any(is_alive(pid) for pid in workers) and run_state(folder) == "interrupted"
    until(lambda: client.read_flow_run(second.id).state.is_final(), "the second run to end")
    assert state_of(client, second) == "Completed"

    (folder / "hang-prepare").unlink()
    third = client.create_flow_run_from_deployment(deployment.id, parameters={"resume": folder.name})
    until(lambda: client.read_flow_run(third.id).state.is_final(), "the resumed run to end")
    assert state_of(client, third) == "Completed" and run_state(folder) == "finished"


def test_reports_open_over_http_and_nothing_else_does(tmp_path: Path) -> None:
    from flows.reports import serving

    report = tmp_path / "runs/a-1/reports/report.html"
    report.parent.mkdir(parents=True)
    report.write_text(REPORT)
    (tmp_path / "params.yaml").write_text("secret")
    with serving(tmp_path, 0) as url:
        port = int(url.rpartition(":")[2])

        def get(path: str, host: str = f"127.0.0.1:{port}", method: str = "GET") -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request(method, path, headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        assert get("/runs/a-1/report.html") == (200, REPORT)
        for path in (
            "/",
            "/params.yaml",
            "/runs/../params.yaml",
            "/runs/a-1/../../params.yaml",
            "/runs/%2e%2e/report.html",
            "/runs/b/report.html",
        ):
            assert get(path)[0] == 404, path
        assert get("/runs/a-1/report.html", host="evil.example")[0] == 404
        assert get("/runs/a-1/report.html", method="POST")[0] == 501
