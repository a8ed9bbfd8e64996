"""The `ratchet` command. Input that cannot work ends in one red line and exit code 2; a run that failed or was sealed in 1."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from flows import cli_episodes, cli_page, cli_project, cli_versions
from flows.cli_shared import PROJECT, RUNS, VERSIONS, Json, Preset, Sets, runs as complete_runs, versions as complete_versions
from ratchet.errors import RatchetError

# Everything heavy (Prefect, DVC, torch) is imported by the command that needs it: `ratchet --help` is instant.


app = typer.Typer(
    name="ratchet",
    help="Trains multi-turn language agents, and keeps a new version only when it is measurably better.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


class Panel(StrEnum):
    """Panels on which versions are compared."""

    test = "test"
    confirm = "confirm"


for part in (cli_page, cli_versions, cli_episodes, cli_project):
    app.add_typer(part.app)  # without a name: its commands stand beside the others


@app.command(rich_help_panel=RUNS)
def run(
    preset: Preset = None,
    settings: Sets = None,
    here: Annotated[bool, typer.Option("--here", help="Run in the checkout itself, as its params.yaml says.")] = False,
    resume: Annotated[str | None, typer.Option(metavar="ID", help="Continue a run that failed or was interrupted.", autocompletion=complete_runs)] = None,
    name: Annotated[str | None, typer.Option(help="First part of the run's id; by default the line.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the complete params that would be run, and stop.")] = False,
) -> None:
    """Run the pipeline in a workspace of its own.

    **Examples**

    - `ratchet run` — the quickstart, minutes on two cores

    - `ratchet run --set rounds=3 --set evolve_online.lr=2e-4` — three rounds, another learning rate

    - `ratchet run --preset alfworld` — full rooms

    - `ratchet run --resume quickstart-20260101-120000-a1b2` — go on where a run stopped

    Every run gets `runs/ID/`, so any number of them can run at once. Ctrl-C stops cleanly; what is finished is kept.
    """
    from flows.commands import run_pipeline

    run_pipeline(preset, settings or [], here, resume, name, dry_run)


@app.command(rich_help_panel=RUNS)
def serve(
    port: Annotated[int, typer.Option(min=1, max=65534, help="Of Prefect's UI, on 127.0.0.1; the page is at the next one.")] = 4200,
    cron: Annotated[str | None, typer.Option(metavar="CRON", help="Start a run at these times, for instance '0 2 * * *'.")] = None,
    preset: Annotated[str | None, typer.Option(help="What --cron runs; by default params.yaml as it is.")] = None,
    settings: Sets = None,
    register: Annotated[bool, typer.Option("--register", help="Only register the deployments, and stop.")] = False,
) -> None:
    """Open Prefect's UI with forms to start, schedule and cancel runs, and work for it.

    **Examples**: `ratchet serve`, `ratchet serve --cron "0 2 * * *" --preset quickstart`

    PREFECT_API_URL names a server of yours; without it one is started here. Ctrl-C ends server, worker and what they run; every
    run can be resumed.
    """
    from flows.commands import root
    from flows.serve import serve as begin

    begin(root(), port, cron, preset, settings or [], register)


@app.command(rich_help_panel=RUNS)
def runs(
    remove: Annotated[
        str | None, typer.Option(metavar="ID", help="Delete a run's workspace; not while it runs or holds a champion's weights.", autocompletion=complete_runs)
    ] = None,
    json: Json = False,
) -> None:
    """List the runs of this checkout, or remove one.

    **Examples**: `ratchet runs`, `ratchet runs --remove quickstart-20260101-120000-a1b2`
    """
    from flows.commands import list_or_remove

    list_or_remove(remove, json)


@app.command(rich_help_panel=RUNS)
def plan(preset: Preset = None, settings: Sets = None, json: Json = False) -> None:
    """Estimate how long a run would take and how much disk it would fill, from a short measurement on this machine.

    **Examples**: `ratchet plan`, `ratchet plan --preset alfworld --set rounds=4`
    """
    from flows.planning import plan as estimate

    estimate(preset, settings or [], json)


@app.command(rich_help_panel=RUNS)
def watch(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="By default the newest that is running, else the newest.", autocompletion=complete_runs)] = None,
) -> None:
    """Follow a run from another terminal: its stages, their progress, and its end. Ctrl-C stops the watching, not the run.

    **Examples**: `ratchet watch`, `ratchet watch quickstart-20260101-120000-a1b2`

    Exits with 0 where the run finished well, else with 1.
    """
    from flows.following import watch as follow

    follow(run_id)


@app.command(rich_help_panel=RUNS)
def report(run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="By default the latest run with a report.", autocompletion=complete_runs)] = None) -> None:
    """Print the path of a run's report.

    **Example**: `xdg-open $(ratchet report)`
    """
    from flows.commands import report_path

    print(report_path(run_id))


@app.command(rich_help_panel=VERSIONS)
def versions(
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="One of them: what was decided about it, by whom, and why.", autocompletion=complete_versions)
    ] = None,
    line: Annotated[str | None, typer.Option(help="Only versions of this line.")] = None,
    json: Json = False,
) -> None:
    """List versions: their success on `confirm`, what was last decided about each, and who is champion.

    **Examples**

    - `ratchet versions --line quickstart`

    - `ratchet versions champion` — its decisions with their reasons
    """
    from flows.commands import list_versions, show_version

    if version is None:
        list_versions(line, json)
    else:
        show_version(version, line, json)


@app.command(rich_help_panel=VERSIONS)
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A version's id, a beginning of one, champion, champion:LINE, or warm.", autocompletion=complete_versions)],
    b: Annotated[str, typer.Argument(metavar="B", help="The version to compare with it; the gain is B minus A.", autocompletion=complete_versions)],
    panel: Annotated[Panel, typer.Option(help="The panel that both have played.")] = Panel.test,
    line: Annotated[str | None, typer.Option(help="Whose champion and warm start are meant.")] = None,
    json: Json = False,
) -> None:
    """Compare two versions, paired task by task, on a panel that both have played.

    **Examples**: `ratchet compare warm champion`, `ratchet compare 1a2b3c 9f8e7d --panel confirm`
    """
    from flows.commands import compare_versions

    compare_versions(a, b, panel.value, line, json)


@app.command(rich_help_panel=PROJECT)
def index() -> None:
    """Rebuild the database from the registry and the runs' episodes. Nothing is lost when it is deleted."""
    from flows.commands import rebuild_index

    rebuild_index()


@app.command(rich_help_panel=PROJECT)
def sync() -> None:
    """Take up what a bare `dvc repro` made: registry, index and events, as `ratchet run` does after each stage.

    **Example**: `dvc repro && ratchet sync`
    """
    from flows.commands import sync_here

    sync_here()


@app.command(rich_help_panel=RUNS)
def waive(
    check: Annotated[str, typer.Argument(help="Name of the failed check, as the report names it.")],
    reason: Annotated[str, typer.Option(help="Why its failure is acceptable; shown in the lineage.")],
) -> None:
    """Let a failed check pass, for a reason that stays on record in waivers.yaml.

    **Example**: `ratchet waive steps.invalid_share --reason "random policies are a third of the pool"`
    """
    from flows.commands import add_waiver

    add_waiver(check, reason)


@app.command(rich_help_panel=PROJECT)
def render() -> None:
    """Renew what is derived: rounds in params.yaml, and in a project what stands for the installed package.

    Write `rounds: 3` into params.yaml and run `ratchet render`: `rounds`, `evaluations` and `last` become what DVC needs.
    """
    from flows.commands import render_here

    render_here()


def main() -> None:
    """Entry point. Exits with 0, 1 (a run failed or was sealed), 2 (input that cannot work) or 130 (Ctrl-C)."""
    try:
        app()
    except RatchetError as error:
        _say(str(error))
        sys.exit(getattr(error, "exit_code", 2))
    except OSError as error:
        from ratchet.files import storage_trouble

        trouble = storage_trouble(error)
        if trouble is None:
            raise
        _say(f"{trouble}, then give the command again")
        sys.exit(2)


def _say(text: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(" ".join(text.split()), style="red", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
