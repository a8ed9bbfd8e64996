"""The flow `monitor`, to be scheduled: is the champion still what it was, and is what it serves still what it knows?

No `from __future__ import annotations` here: it breaks the parameters of served flows.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from flows.quiet import prepare_prefect

prepare_prefect()

from prefect import flow  # noqa: E402  (it reads its environment when imported)
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact  # noqa: E402

from flows import alerting, events, workspace  # noqa: E402
from flows.links import monitor_link  # noqa: E402
from flows.results import comparison_rows, percent  # noqa: E402
from monitoring.alerts import plain  # noqa: E402

SERVED = "served-episodes"


@flow(name="monitor", persist_result=False, log_prints=True)
def monitor(
    line: str | None = None,
    tasks: Annotated[int, Field(ge=20)] = 256,
    served: str = SERVED,
) -> str:
    """Plays the champion again on a panel of its own, and compares it with itself and with what was served since. Returns the verdict.

    A champion that does worse, or drift, goes out as an event; whom that reaches stands in prefect.yaml.

    Args:
        line: Whose champion. Empty takes the only line, or the one promoted last.
        tasks: How many tasks of the panel are played.
        served: Folder of served episodes, in the checkout or anywhere, as JSONL of chats or as our Parquet files.
    """
    from flows.looking import look

    root = workspace.find_root(Path.cwd())
    found = look(root, line or None, tasks, root / served)
    record, judged = found.record, found.record["regression"]
    text = f"{record['version']}, champion of line {record['line']}: {percent(record['summary']['success'])} of {record['summary']['n']} tasks"
    said = [*(judged["reasons"] if judged else ["the first look on this panel"]), f"drift: {record['drift']['status']}"]
    said += [f"served: {record['served']['episodes']} new episodes", *record["served"]["problems"]]
    said += [record["note"]] if record["note"] else []
    print(text)
    for one in said:
        print(plain(one))
    create_markdown_artifact(f"**{text}**\n\n" + "\n".join(f"- {plain(one)}" for one in said), key="monitor")
    if record["comparison"]:
        create_table_artifact(comparison_rows(record["comparison"]), key="monitor-comparison", description="A is what it was, B what it is now")
    create_link_artifact(monitor_link(root, record["id"]), link_text="the look", key="monitor-report")
    events.deliver(root)
    alerting.follow(root, 10.0)
    return judged["verdict"] if judged else "first"
