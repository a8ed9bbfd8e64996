"""The flows that the Prefect UI offers beside `evolve`: evaluate a version, compare two.

No `from __future__ import annotations` here: it breaks the parameters of served flows.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from flows.quiet import prepare_prefect

prepare_prefect()

from prefect import flow  # noqa: E402  (it reads its environment when imported)
from prefect.artifacts import create_markdown_artifact, create_table_artifact  # noqa: E402

from flows import workspace  # noqa: E402
from flows.results import comparison_rows, percent  # noqa: E402

Version = Annotated[str, Field(min_length=1)]


class Panel(StrEnum):
    """Panels of a run."""

    test = "test"
    confirm = "confirm"
    select = "select"


@flow(name="evaluate", persist_result=False, log_prints=True)
def evaluate(
    version: Version = "champion",
    env: str | None = None,
    panel: Panel = Panel.test,
    tasks: Annotated[int, Field(ge=1)] | None = None,
) -> None:
    """Plays a version on a panel, outside its run. Shows its success with a 95 % Wilson interval, and the panel's hash.

    Args:
        version: A version's id, a beginning of one, champion, champion:LINE, or warm.
        env: A benchmark, or BENCHMARK/PATTERN of its tasks. Empty plays the run's own games.
        panel: Which of the panels.
        tasks: How many tasks at most. Empty plays the whole panel.
    """
    from flows.evaluating import evaluate_version

    result = evaluate_version(workspace.find_root(Path.cwd()), version, env or None, panel.value, tasks)
    played = "/".join(filter(None, (result["env"], result["pattern"])))
    text = f"**{result['version']}: {percent(result['success'])}** of {result['n']} tasks of {played}, panel {panel.value} `{result['panel_hash'][:12]}`"
    print(text)
    create_markdown_artifact(f"{text}\n\nOutcomes: `{result['outcomes']}`", key="evaluation")
    strata = [{"games of": name, "n": one["n"], "success": percent(one["success"])} for name, one in result["by_stratum"].items()]
    create_table_artifact(strata, key="evaluation-strata", description=f"{result['version']} on {played}")


@flow(name="compare", persist_result=False, log_prints=True)
def compare(a: Version = "warm", b: Version = "champion", panel: Panel = Panel.test, line: str | None = None) -> dict[str, Any]:
    """Compares two versions, paired task by task, on a panel that both have played. The gain is b minus a.

    Args:
        a: A version's id, a beginning of one, champion, champion:LINE, or warm.
        b: The version to compare with it.
        panel: A panel that both have played.
        line: Whose champion and warm start are meant. Empty takes the only line, or the one promoted last.
    """
    from ratchet.store.queries import comparison_of

    result = comparison_of(workspace.find_root(Path.cwd()), a, b, panel.value, line or None)
    said = f"gain {percent(result['gain'], signed=True)} on {result['n']} tasks of {panel.value}"
    print(f"{result['b']['version']} against {result['a']['version']}: {said}")
    create_table_artifact(
        comparison_rows(result), key="comparison", description=f"A {result['a']['version']}, B {result['b']['version']}: {said}"
    )
    return result["gain"]
