"""Options that several commands have, and the groups that `ratchet --help` shows."""

from typing import Annotated

import typer

RUNS, VERSIONS, EPISODES, PROJECT = "Runs", "Versions", "Episodes", "Project and store"

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Preset = Annotated[str | None, typer.Option(help="A file of presets/, by its name; without it, params.yaml as it is.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting on top, for instance evolve_online.lr=1e-4.")
]
