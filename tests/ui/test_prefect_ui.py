"""Prefect's own UI in a headless Chromium: the form, a run from it, its artifacts. Pictures go to RATCHET_PICTURES where that is set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import Tab, chromium, tab
from tests.ui.conftest import Served, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(chromium() is None, reason="needs a Chromium; on Debian: apt-get install chromium"),
]
FIELD = "[...document.querySelectorAll('.schema-form-property')].find(e => e.innerText.trim().startsWith('{name} '))"
# Vue listens to events, and looks at the value that the element itself was given
FILL = """(() => {{ const e = {field}.querySelector('{tag}'), kind = '{tag}' === 'select' ? HTMLSelectElement : HTMLInputElement;
Object.getOwnPropertyDescriptor(kind.prototype, 'value').set.call(e, '{value}');
e.dispatchEvent(new Event('input', {{bubbles: true}})); e.dispatchEvent(new Event('change', {{bubbles: true}})); return e.value }})()"""


def visit(page: Tab, url: str, width: int = 1280, height: int = 1100) -> None:
    for domain in ("Page", "Runtime"):
        page.call(f"{domain}.enable")
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    page.call("Page.navigate", url=url)


def text(page: Tab) -> str:
    return page.evaluate("document.body ? document.body.innerText : ''") or ""


def fill(page: Tab, name: str, tag: str, value: str) -> None:
    assert page.evaluate(FILL.format(field=FIELD.format(name=name), tag=tag, value=value)) == value


def click(page: Tab, label: str) -> None:
    found = f"[...document.querySelectorAll('button, a, .p-tab')].find(e => e.innerText.trim() === '{label}')"
    until(lambda: page.evaluate(f"(() => {{ const e = {found}; if (e) e.click(); return !!e }})()"), f"a button {label}")


def keep(page: Tab, name: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("RATCHET_PICTURES") or tmp_path)
    page.picture(folder / f"{name}.png", clip=(0, page.evaluate("innerHeight")))
    assert (folder / f"{name}.png").stat().st_size > 10_000


def test_form_run_artifacts(served: Served, client: Any, tmp_path: Path) -> None:
    deployment = client.read_deployment_by_name("evolve/evolve")
    with tab(tmp_path / "profile") as page:
        visit(page, f"{served.url}/deployments/deployment/{deployment.id}/run")
        until(lambda: "Submit" in text(page) and "What to run, a file of presets/" in text(page), "the form")
        fill(page, "preset", "select", "smoke")
        fill(page, "rounds", "input", "1")
        keep(page, "prefect-form", tmp_path)
        click(page, "Submit")
        run = until(lambda: next(iter(runs_of(client, deployment)), None), "a run from the form")
        assert run.parameters["preset"] == "smoke" and run.parameters["rounds"] == 1
        until(lambda: client.read_flow_run(run.id).state.is_final(), "the run's end")
        assert client.read_flow_run(run.id).state.name == "Completed"

        visit(page, f"{served.url}/runs/flow-run/{run.id}")
        click(page, "Artifacts")
        until(lambda: all(key in text(page).lower() for key in ("progress", "evaluation-1", "decision-1", "report")), "the artifacts")
        keep(page, "prefect-artifacts", tmp_path)
        (report,) = [one for one in client.read_artifacts() if one.key == "report" and one.flow_run_id == run.id]
        visit(page, f"{served.url}/artifacts/artifact/{report.id}")
        link = until(
            lambda: page.evaluate("[...document.querySelectorAll('a')].map(e => e.href).find(e => e.endsWith('report.html'))"), "a link"
        )
        (folder,) = served.checkout.glob("runs/smoke-*")
        assert link.startswith("http://127.0.0.1:") and folder.name in link
        visit(page, link)
        until(lambda: page.evaluate("document.title") == "The report of a run", "the report behind the link")


def runs_of(client: Any, deployment: Any) -> list[Any]:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
    from prefect.client.schemas.sorting import FlowRunSort

    wanted = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
    found = client.read_flow_runs(deployment_filter=wanted, sort=FlowRunSort.START_TIME_DESC)
    return [run for run in found if "name" not in run.parameters and "resume" not in run.parameters]
