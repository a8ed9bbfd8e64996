"""Commands about episodes: read one, play one, bring some in, take some out."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_shared import EPISODES, Json, Preset, Sets, runs

app = typer.Typer()


@app.command(rich_help_panel=EPISODES)
def episode(
    episode_id: Annotated[str, typer.Argument(metavar="ID", help="An episode's id, or a beginning of at least four characters.")],
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Look only in this run.", autocompletion=runs)] = None,
    json: Json = False,
) -> None:
    """Show one episode turn by turn: what was seen («observation»), what was replied, what came of it.

    **Examples**: `ratchet episode 0b4f9c2e`, `ratchet episode 0b4f9c2e --json | jq .steps`
    """
    from flows.episodes import show_episode

    show_episode(episode_id, run, json)


@app.command(rich_help_panel=EPISODES)
def play(
    env: Annotated[str | None, typer.Argument(metavar="[ENV[/KIND]]", help="A benchmark or module:Class; by default that of params.yaml.")] = None,
    split: Annotated[str, typer.Option(help="Where the task comes from.")] = "train",
    seed: Annotated[int | None, typer.Option(help="The same seed is the same task; by default another one each time.")] = None,
    preset: Preset = None,
    settings: Sets = None,
) -> None:
    """Play an episode yourself. `?` lists the admissible actions.

    **Examples**

    - `ratchet play alfworld`

    - `ratchet play alfworld/look_at_obj_in_light --seed 3`

    - `printf '?\\nlook\\n.\\n' | ratchet play` — without a terminal
    """
    from flows.playing import play as begin

    begin(env, split, seed, preset, settings or [])


@app.command("import", rich_help_panel=EPISODES)
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL, one conversation a line, or one JSON list of them.")],
    env: Annotated[str | None, typer.Option(help="Their environment, where a line does not say it; by default that of params.yaml.")] = None,
    action_format: Annotated[
        str | None, typer.Option("--format", help="How replies will say actions: plain, tagged or tool; by default as params.yaml says.")
    ] = None,
) -> None:
    """Bring in demonstrations: OpenAI-style chats (`messages`) and ETO-style trajectories (`conversations`).

    **Examples**

    - `ratchet import eto/sciworld_sft.json`

    - `ratchet import chats.jsonl && ratchet run --set demonstrate.imported=chats-0123456789ab`

    An action is read from `Thought: … Action: …`, from a tool call, from our own formats, or, where none of a conversation's replies marks
    one, from a reply of one line. `solved`, `success`, `score` or `reward` (0 to 1) say how it ended. Broken lines are named, the rest is kept.
    """
    from flows.interchange import import_file

    import_file(file, env, action_format)


@app.command(rich_help_panel=EPISODES)
def export_episodes(
    target: Annotated[str, typer.Argument(metavar="FILE", help="A JSONL file; - is standard output.")],
    run: Annotated[str | None, typer.Option(metavar="RUN", help="By default the newest run.", autocompletion=runs)] = None,
    stage: Annotated[list[str] | None, typer.Option(help="Only episodes of this stage: demonstrations, harvest@1, online@1, final, …")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only episodes of this policy.")] = None,
    solved: Annotated[bool, typer.Option("--solved", help="Only episodes that solved their task.")] = False,
) -> None:
    """Write episodes as OpenAI-style chats, one JSON object a line.

    **Example**: `ratchet export-episodes solved.jsonl --stage harvest@1 --solved`
    """
    from flows.interchange import export_episodes as export

    export(target, run, stage or [], solved, policy or [])
