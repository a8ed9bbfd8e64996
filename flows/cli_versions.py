"""Commands about versions: decisions by a person, and what leaves the registry."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_shared import VERSIONS, Json, versions

app = typer.Typer()
Version = Annotated[
    str,
    typer.Argument(metavar="VERSION", help="A version's id, a beginning of one, champion or champion:LINE.", autocompletion=versions),
]
Reason = Annotated[str, typer.Option(help="Why; stays on record with the version.")]
By = Annotated[str | None, typer.Option(help="Who decides; by default git's user.name, else the login.")]


@app.command(rich_help_panel=VERSIONS)
def promote(
    version: Version,
    reason: Reason,
    line: Annotated[str | None, typer.Option(help="The line it becomes champion of; by default its own.")] = None,
    by: By = None,
) -> None:
    """Make a version champion, as a person's decision on record.

    **Example**: `ratchet promote 1a2b3c --reason "fewer invalid actions, same success"`
    """
    from flows.deciding import promote_version

    promote_version(version, reason, line, by)


@app.command(rich_help_panel=VERSIONS)
def approve(
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="A version that waits; without one, what waits is listed.", autocompletion=versions)
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; stays on record with the version.")] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Say no: the champion stays.")] = False,
    line: Annotated[str | None, typer.Option(help="The line that it waits in, where it waits in several.")] = None,
    by: By = None,
    json: Json = False,
) -> None:
    """Answer for a version that was promoted where the settings say `approval: person`.

    **Examples**

    - `ratchet approve` — what waits, and why

    - `ratchet approve 1a2b3c --reason "read 20 episodes, no new habits"`

    - `ratchet approve 1a2b3c --refuse --reason "opens drawers for no reason"`
    """
    from flows.deciding import approve_version

    approve_version(version, reason, refuse, line, by, json)


@app.command(rich_help_panel=VERSIONS)
def rollback(
    reason: Reason,
    line: Annotated[str | None, typer.Argument(metavar="[LINE]", help="May be left out where there is only one.")] = None,
    to: Annotated[str | None, typer.Option(metavar="VERSION", help="Go back to this version instead of the champion before.")] = None,
    by: By = None,
) -> None:
    """Go back to the champion before, as a person's decision on record. Nothing is deleted.

    **Examples**

    - `ratchet rollback --reason "worse in production"`

    - `ratchet rollback alfworld --to 1a2b3c --reason "the last one that was checked by hand"`
    """
    from flows.deciding import roll_back

    roll_back(line, reason, to, by)


@app.command(rich_help_panel=VERSIONS)
def evaluate(
    version: Version,
    env: Annotated[
        str | None, typer.Option(metavar="NAME[/PATTERN]", help="Another benchmark, or a kind of its tasks; by default the games of its run.")
    ] = None,
    panel: Annotated[str, typer.Option(help="The panel whose tasks are played.")] = "test",
    tasks: Annotated[int | None, typer.Option(help="At most so many of them, the same for every version.")] = None,
    guide: Annotated[str | None, typer.Option(metavar="meter", help="Play them once more, a progress meter choosing each action (docs/meter.md).")] = None,
    candidates: Annotated[int, typer.Option(help="With --guide: different actions that are tried each turn.")] = 4,
    meter: Annotated[str | None, typer.Option(metavar="FOLDER", help="With --guide: which meter; by default the newest of the version's run.")] = None,
    json: Json = False,
) -> None:
    """Play a version on a panel and measure it: success, its interval, and the panel's hash.

    **Examples**

    - `ratchet evaluate champion`

    - `ratchet evaluate 1a2b3c --env scienceworld/lifespan-longest-lived --tasks 20`

    - `ratchet evaluate served:gpt --tasks 20` — a served model of params.yaml

    - `ratchet evaluate champion --guide meter --candidates 4` — natural and guided success, and the environment steps of both

    Nothing of it enters the registry: what decides are the runs' own panels. Do not choose versions by the test panel.
    """
    from flows.measuring import evaluate as measure

    measure(version, env, panel, tasks, json, guide, candidates, meter)


@app.command(name="step-quality", rich_help_panel=VERSIONS)
def step_quality(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Labelled trajectories, JSONL in AgentProcessBench's form.")],
    meter: Annotated[Path, typer.Option(metavar="FOLDER", help="The meter: models/rounds/K/meter of a run.")],
    validation: Annotated[Path | None, typer.Option(metavar="FILE", help="Other trajectories, on which the dead zone is tuned.")] = None,
    delta: Annotated[str, typer.Option(help="paper, or td: less what a step wrote itself.")] = "paper",
    json: Json = False,
) -> None:
    """Compare what a progress meter says of each step with labels of somebody's trajectories.

    **Example**: `ratchet step-quality test.jsonl --validation val.jsonl --meter runs/ID/models/rounds/1/meter`
    """
    from flows.judging import step_quality as judge

    judge(file, meter, validation, delta, json)


@app.command(rich_help_panel=VERSIONS)
def export(
    version: Version,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    line: Annotated[str | None, typer.Option(help="Whose champion is meant.")] = None,
) -> None:
    """Write a version as a Hugging Face folder: weights, tokenizer, chat template, and a model card with the evidence.

    **Example**: `ratchet export champion my-agent` — then `AutoModelForCausalLM.from_pretrained("my-agent")` with plain transformers
    """
    from flows.exporting import export_version

    export_version(version, folder, line)
