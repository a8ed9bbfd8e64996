"""Commands about a project: begin one, see whether it can work, set it up, tidy it."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_shared import PROJECT, Json, Preset, Sets, presets

app = typer.Typer()


@app.command(rich_help_panel=PROJECT)
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Begin a project of your own: a git repository with settings, presets and stages that run the installed package.

    **Example**: `ratchet init my-project && cd my-project && ratchet run --preset smoke`
    """
    from flows.project import init as begin

    begin(folder)


@app.command(rich_help_panel=PROJECT)
def doctor(json: Json = False) -> None:
    """Look at this machine: versions, threads, memory, disk, Java, compilers, and what each preset needs.

    **Examples**: `ratchet doctor`, `ratchet doctor --json`

    One line each: ok, warn (not everybody needs it) or fail, with the way out. Exits with 1 where something fails.
    """
    from flows.doctor import doctor as look

    look(json)


@app.command(rich_help_panel=PROJECT)
def schema(write: Annotated[bool, typer.Option("--write", help="Write params.schema.json, which editors read.")] = False) -> None:
    """Print the JSON Schema of params.yaml: every setting with its type, bounds and meaning.

    **Examples**: `ratchet schema | jq .properties`, `ratchet schema --write` after naming an environment of your own
    """
    from flows.schema import print_or_write

    print_or_write(write)


@app.command(rich_help_panel=PROJECT)
def use(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="A file of presets/, by its name.", autocompletion=presets)],
    settings: Sets = None,
    force: Annotated[bool, typer.Option("--force", help="Lose the settings of your own that params.yaml holds.")] = False,
) -> None:
    """Write a preset's settings into params.yaml, for `dvc repro`, `ratchet run --here` and for editing.

    **Examples**: `ratchet use alfworld`, `ratchet use smoke --set rounds=1`, `ratchet use quickstart` to go back to the defaults

    Comments are kept. Settings of your own are never lost without --force.
    """
    from flows.using import use_preset

    use_preset(preset, settings or [], force)


@app.command(rich_help_panel=PROJECT)
def tune(
    preset: Preset = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and say, and write nothing.")] = False,
    json: Json = False,
) -> None:
    """Measure what pays on this machine, and write it into the settings: `learner.autocast`, the precision of an update's passes.

    **Examples**: `ratchet tune --dry-run`, `ratchet tune --preset alfworld`

    The first actor is updated in fp32 and in bf16 in turns, with the batches of warm start and online rounds; bf16 is chosen where a run
    would learn at least 5 % faster. It also says how many threads are fastest. It takes about a minute; let nothing else run beside it.
    """
    from flows.tuning import tune as measure

    measure(preset, dry_run, json)


@app.command(rich_help_panel=PROJECT)
def gc(
    keep: Annotated[int, typer.Option(help="So many of the newest runs stay whole, beside those that are running.")] = 3,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without this it only says what it would free.")] = False,
    json: Json = False,
) -> None:
    """Free what old runs hold: their episodes, undecided weights, and what nothing refers to in the DVC cache.

    **Examples**: `ratchet gc` to see, `ratchet gc --keep 5 --apply` to do it

    Champions, versions with decisions, and runs that are running are never touched; reports and settings stay with them. While a run is
    on, the cache is left alone.
    """
    from flows.retention import collect

    collect(keep, apply, json)


@app.command(rich_help_panel=PROJECT)
def alerts(
    retry: Annotated[bool, typer.Option("--retry", help="Send now what was not taken, also what was given up.")] = False,
    count: Annotated[int, typer.Option("--last", min=1, help="How many events are shown.")] = 20,
    json: Json = False,
) -> None:
    """List the newest events, and of each receiver of alerts whether it took them.

    **Examples**: `ratchet alerts`, `ratchet alerts --retry`

    Receivers stand in prefect.yaml. What one does not take is sent again later and later for a week; `ratchet serve` does that, and each run.
    """
    from flows.telling import show_alerts

    show_alerts(retry, count, json)
