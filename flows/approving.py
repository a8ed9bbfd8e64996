"""Approval by a person in the browser: the flow that asks what `ratchet approve` answers in a terminal.

No `from __future__ import annotations` here: it breaks the parameters of served flows.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field

from flows.quiet import prepare_prefect

prepare_prefect()

from prefect import flow  # noqa: E402  (it reads its environment when imported)
from prefect.flow_runs import suspend_flow_run  # noqa: E402
from prefect.input import RunInput  # noqa: E402

from flows import events, workspace  # noqa: E402
from flows.links import link_to  # noqa: E402
from monitoring.alerts import plain  # noqa: E402
from ratchet.errors import RatchetError  # noqa: E402
from ratchet.store import approvals  # noqa: E402
from ratchet.store.approvals import Waiting  # noqa: E402

ENTRYPOINT = "flows.approving.approve"
IN_THE_BROWSER = "somebody at Prefect's UI"


class Answer(RunInput):
    """What a person says."""

    approve: bool = Field(description="Whether the version becomes champion of its line.")
    reason: str = Field(min_length=1, description="Why; it stays on record with the version.")
    by: str = Field(default="", description="Who says so.")


@flow(name="approve", flow_run_name="{version}", persist_result=False, log_prints=True)
def approve(version: str, line: str | None = None) -> None:
    """Asks a person whether a version that its run promoted becomes champion of its line. `ratchet serve` starts it; resume it to answer.

    Args:
        version: A version that waits, by its id or a beginning of it.
        line: Its line. Empty takes the one that it waits in.
    """
    root = workspace.find_root(Path.cwd())
    found = [one for one in approvals.waiting(root) if one.version.startswith(version) and line in (None, one.line)]
    if not found:
        print(f"{version}: waits for nobody's answer (any more)")
        return
    one = found[-1]
    said = suspend_flow_run(wait_for_input=Answer.with_initial_data(description=question(root, one)), key=one.version, timeout=None)
    approvals.answer(root, one.version, said.approve, said.reason, said.by.strip() or IN_THE_BROWSER, one.line)
    print(f"{one.version} is {'champion of line ' + one.line if said.approve else 'refused'}: {plain(said.reason)}")
    events.deliver(root)


def question(root: Path, one: Waiting) -> str:
    """Markdown above the form: what is asked, what the rule said, and where to read more."""
    event = approvals.needed(one.run, one.round, {"candidate": {"version": one.version}, "champion": {"version": one.champion}, **_of(one)})
    rule = "\n".join(f"- {plain(reason)}" for reason in one.reasons)
    return (
        f"Shall **{one.version}** (run {one.run}, round {one.round}) become champion of line **{one.line}**, in place of {one.champion or 'none'}?"
        f"\n\n{rule}\n\n[report]({link_to(root, event)})"
    )


def _of(one: Waiting) -> dict[str, Any]:
    return {"line": one.line, "reasons": one.reasons}


def ask(root: Path, client: Any, deployment: str) -> int:
    """Starts the question in the browser for each version that waits, once; ends those that were answered elsewhere. Returns how many wait.

    `deployment` is `FLOW/NAME` of the flow above.
    """
    from prefect.client.schemas.filters import (
        DeploymentFilter,
        DeploymentFilterId,
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Cancelled

    try:
        found = client.read_deployment_by_name(deployment)
    except ObjectNotFound:
        return 0
    waiting = approvals.waiting(root)
    for one in waiting:
        parameters = {"version": one.version, "line": one.line}
        client.create_flow_run_from_deployment(found.id, parameters=parameters, idempotency_key=f"approve-{one.line}-{one.version}")
    paused = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED])))
    mine = DeploymentFilter(id=DeploymentFilterId(any_=[found.id]))
    still = {(one.version, one.line) for one in waiting}
    for run in client.read_flow_runs(flow_run_filter=paused, deployment_filter=mine):
        if (run.parameters.get("version"), run.parameters.get("line")) not in still:
            client.set_flow_run_state(run.id, Cancelled(message="answered elsewhere"), force=True)
    return len(waiting)


def remind(root: Path, run_id: str, note: Any) -> None:
    """Says at the end of a run what of it waits for a person."""
    with suppress(RatchetError):
        for one in approvals.waiting(root):
            if one.run == run_id:
                note(f"{one.version} waits for a person: `ratchet approve {one.version} --reason …`, or the same with --refuse")
