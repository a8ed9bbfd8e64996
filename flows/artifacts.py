"""What the Prefect UI shows of a run beside its logs: progress, how fast its stages are, a table an evaluation, what checks and drift
found, a text a decision, a link to the report."""

import os
from pathlib import Path
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from flows.dag import split_name
from flows.reports import URL_VARIABLE, report_url
from flows.results import decision_text, evaluation_rows, finding_rows
from flows.speed import measured, speed_rows
from flows.workspace import HERE, RUNS

PROGRESS_KEY, SPEED_KEY, REPORT_KEY = "progress", "throughput", "report"


def begin_progress(run_id: str) -> UUID:
    """A progress bar at 0."""
    created = create_progress_artifact(progress=0.0, key=PROGRESS_KEY, description=f"stages of {run_id}")
    assert isinstance(created, UUID)
    return created


def move_progress(artifact: UUID, done: int, count: int) -> None:
    update_progress_artifact(artifact_id=artifact, progress=round(100 * done / count, 1))


def after_stage(workspace: Path, name: str) -> None:
    """Shows what the stage brought, told by the files it wrote: an evaluation's table, or a decision."""
    if measured(workspace, name) is not None:
        create_table_artifact(table=speed_rows(workspace), key=SPEED_KEY, description="where the time of the stages goes")
    stage, key = split_name(name)
    if stage == "evaluate" and key is not None:
        rows = evaluation_rows(workspace, key)
        if rows:
            create_table_artifact(table=rows, key=f"evaluation-{key}", description=f"candidates of round {key}")
    if stage in ("check", "drift") and key is not None:
        found = finding_rows(workspace, stage, key)
        if found:
            create_table_artifact(table=found, key=f"{stage}-{key}", description=f"{stage} of round {key}: what is beyond a limit")
    if stage == "report":
        report = (workspace / "reports" / "report.html").resolve()
        served = os.environ.get(URL_VARIABLE)  # a browser opens no file: links from a page that came over HTTP
        link = report_url(served, workspace.name if workspace.parent.name == RUNS else HERE) if served else report.as_uri()
        create_link_artifact(link=link, link_text="report", key=REPORT_KEY, description=str(report))
    if stage in ("baseline", "decide"):
        round_key = key or "0"
        text = decision_text(workspace, round_key)
        if text:
            create_markdown_artifact(markdown=f"**{text}**", key=f"decision-{round_key}", description=f"decision of round {round_key}")
