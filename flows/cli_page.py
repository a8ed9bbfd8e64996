"""The command that opens the page of a checkout."""

from typing import Annotated

import typer

from flows.cli_shared import RUNS

app = typer.Typer()


@app.command(rich_help_panel=RUNS)
def ui(
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 takes any that is free.")] = 8400,
    decide: Annotated[bool, typer.Option("--decide", help="Print a token with which versions are promoted and rolled back in the page.")] = False,
) -> None:
    """Open the page of this checkout: versions, comparison, runs and rounds, episodes turn by turn, alerts.

    **Examples**: `ratchet ui`, `ratchet ui --port 8500`, `ratchet ui --decide`

    It reads only, unless you give --decide, and answers to this machine alone. Ctrl-C ends it.
    """
    from flows.ui import show

    show(port, decide)
