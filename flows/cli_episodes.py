"""Commands about episodes: read one, play one, bring some in, take some out."""

from typing import Annotated

import typer

from flows.cli_shared import EPISODES, Json

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
