"""Commands about episodes: read one, play one, bring some in, take some out."""

from typing import Annotated

import typer

from flows.cli_shared import EPISODES, Json, Preset, Sets

app = typer.Typer()


@app.command(rich_help_panel=EPISODES)
def episode(
    episode_id: Annotated[str, typer.Argument(metavar="ID", help="An episode's id, or a beginning of at least four characters.")],
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Look only in this run.")] = None,
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

    - `printf '?\nlook\n.\n' | ratchet play` — without a terminal
    """
    from flows.playing import play as begin

    begin(env, split, seed, preset, settings or [])
