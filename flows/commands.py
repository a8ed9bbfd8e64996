"""What the commands of cli.py do. Imported by a command when it runs, so that the others start at once."""

import json as json_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flows import workspace
from flows.results import comparison_rows, percent
from flows.speed import duration
from flows.view import make_view, watching
from ratchet import installed
from ratchet.errors import RatchetError


class Interrupted(RatchetError):
    """Ctrl-C; the text says how to go on."""

    exit_code = 130


def root() -> Path:
    """The checkout around the current folder."""
    return workspace.find_root(Path.cwd())


def run_pipeline(preset: str | None, settings: list[str], here: bool, resume: str | None, name: str | None, dry_run: bool) -> None:
    """`ratchet run`."""
    if dry_run:
        print_params(preset, settings)
        return
    view = make_view()
    from flows import evolve  # prepares Prefect's environment before it is imported
    from flows.dag import stage_names

    run_id, folder = evolve.open_run(root(), preset, settings, resume, here, name)
    view.header(run_id, folder, preset or "params.yaml", stage_names(folder))
    token = watching.set(view)
    try:
        evolve.start_api()
        evolve.evolve(resume=run_id)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; go on with {evolve.way_on(run_id)}") from None
    finally:
        view.close()
        watching.reset(token)
        _show_outcome(view, folder)


def print_params(preset: str | None, settings: list[str]) -> None:
    """`ratchet run --dry-run`."""
    from ratchet.rendering import render_run
    from ratchet.settings import dump_params

    print(dump_params(render_run(root(), preset, settings)), end="")


def list_or_remove(remove: str | None, json: bool) -> None:
    """`ratchet runs`."""
    if remove is not None:
        workspace.remove(root(), remove)
        print(f"{remove} removed")
        return
    found = workspace.list_runs(root())
    rows = [
        {"run": run.run_id, "state": run.state, "stages": f"{run.stages_done}/{run.stages}", "time": duration(run.seconds)} for run in found
    ]
    show(rows, ["run", "state", "stages", "time"], json, "no runs yet; start one with `ratchet run`")


def report_path(run_id: str | None) -> Path:
    """`ratchet report`."""
    folders = [workspace.find(root(), run_id)] if run_id else [run.workspace for run in reversed(workspace.list_runs(root()))]
    for folder in folders:
        if (folder / "reports" / "report.html").is_file():
            return folder / "reports" / "report.html"
    raise RatchetError(f"{run_id or 'no run'}: has no report yet; finish it with `ratchet run --resume {run_id or 'ID'}`")


def render_here() -> None:
    """`ratchet render`."""
    from ratchet.files import write_bytes
    from ratchet.rendering import rerender

    for folder in dict.fromkeys((root(), workspace.nearest(Path.cwd()))):
        for name in installed.renew(folder):
            print(f"{folder / installed.FOLDER / name}: renewed")
    path = root() / "params.yaml"
    before = path.read_text(encoding="utf-8")
    after = rerender(before, path.parent)
    if after == before:
        print("params.yaml is as it should be")
        return
    write_bytes(path, after.encode())
    print("params.yaml: rounds, evaluations and last renewed")


def list_versions(line: str | None, json: bool) -> None:
    """`ratchet versions`."""
    from ratchet.store.queries import versions_table

    rows = [
        {
            **{name: one[name] for name in ("version", "line", "round", "status")},
            "what": one["actor"] if one["kind"] == "actor" else one["kind"],
            **{panel: percent(one[panel]) if one[panel] else "" for panel in ("confirm", "test")},
            "decided": (one["event"] or "").removeprefix("model."),
            "run": one["created_by"],
        }
        for one in versions_table(root(), line)
    ]
    columns = ["version", "what", "line", "round", "status", "decided", "confirm", "test", "run"]
    show(rows, columns, json, f"no versions{f' of line {line}' if line else ''} yet; `ratchet run` makes the first ones")


def show_version(version: str, line: str | None, json: bool) -> None:
    """`ratchet versions VERSION`: where it stands, and every decision about it."""
    from monitoring.alerts import plain
    from ratchet.store.champions import champions, find
    from ratchet.store.queries import PANELS, row_of

    registry = root() / "registry"
    card = find(registry, version, line)
    row = row_of(card, champions(registry))
    if json:
        print(json_module.dumps(row | {"decisions": card["decisions"]}, indent=1, sort_keys=True))
        return
    print(f"{row['version']}: {row['status']} of line {row['line']}, {row['kind']} {row['actor']}, round {row['round']} of run {row['run'] or row['created_by']}")
    for panel in PANELS:
        if row[panel]:
            print(f"{panel}: {percent(row[panel])} of {row[panel]['n']} tasks")
    if not card["decisions"]:
        print("nothing was decided about it yet")
    for one in card["decisions"]:
        waits = ", and waits for a person" if one.get("awaits") else ""
        print(f"{one['at'][:16].replace('T', ' ')} {one['event']}, line {one['line']}, by {plain(one['by'])}{waits}")
        for reason in one["reasons"]:
            print(f"  {plain(reason)}")


def compare_versions(a: str, b: str, panel: str, line: str | None, json: bool) -> None:
    """`ratchet compare`."""
    from ratchet.store.queries import comparison_of

    result = comparison_of(root(), a, b, panel, line)
    if json:
        print(json_module.dumps(result, indent=1, sort_keys=True))
        return
    print(f"{result['panel']} panel, {result['n']} games in {result['clusters']} clusters, {100 * result['level']:.0f} % intervals")
    show(comparison_rows(result), ["games of", "n", "A", "B", "gain (B - A)"], False, "")
    gained, lost = (result["flips"][name] for name in ("gained", "lost"))
    print(f"solved by B only: {len(gained)}, by A only: {len(lost)} (listed with --json)")


def rebuild_index() -> None:
    """`ratchet index`."""
    from ratchet.store.index import rebuild

    counts = rebuild(root())
    print("index rebuilt: " + ", ".join(f"{count} {name}" for name, count in counts.items()))


def sync_here() -> None:
    """`ratchet sync`: all workspaces, the checkout included; events go out where Prefect's API answers."""
    from ratchet.store.index import workspaces
    from ratchet.store.sync import sync

    here = root()
    events = [event for run_id, folder in workspaces(here) for event in sync(here, folder, run_id)]
    for event in events:
        print(f"{event.kind}: {event.text}")
    from flows import evolve
    from flows.events import deliver

    evolve.start_api()
    print(f"{len(events)} new events, {deliver(here)} delivered")


def add_waiver(check: str, reason: str) -> None:
    """`ratchet waive`."""
    from monitoring import waivers

    waivers.add_waiver(root() / "waivers.yaml", check, reason)
    print(f"waivers.yaml: {check} is waived; go on with `ratchet run --resume ID`")


def show(rows: list[dict[str, Any]], columns: list[str], json: bool, nothing: str) -> None:
    """Rows as a table, or as JSON; `nothing` is what is said where there are none."""
    if json:
        print(json_module.dumps(rows, indent=1, sort_keys=True))
        return
    if not rows:
        print(nothing)
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # a pipe has no width, and nothing in it should be cut
    console.print(table, highlight=False, markup=False)


def _show_outcome(view: Any, folder: Path) -> None:
    from flows.results import outcome

    found = outcome(folder)
    if found.report:
        view.end(found)
