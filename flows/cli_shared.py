"""Options that several commands have, the groups that `ratchet --help` shows, and what the shell completes beside commands.

Completion reads names of files only: it has to be there before the next key is pressed.
"""

from pathlib import Path
from typing import Annotated

import typer

RUNS, VERSIONS, EPISODES, PROJECT = "Runs", "Versions", "Episodes", "Project and store"


def presets(incomplete: str) -> list[str]:
    """Names of presets that begin so."""
    return _names("presets/*.yaml", incomplete)


def runs(incomplete: str) -> list[str]:
    """Ids of runs that begin so."""
    return _names("runs/*", incomplete)


def versions(incomplete: str) -> list[str]:
    """Versions with a card that begin so, and `champion`."""
    found = [name for name in _names("registry/*.json", incomplete) if name != "champions"]
    return [*found, *(["champion"] if "champion".startswith(incomplete) else [])]


def _names(pattern: str, incomplete: str) -> list[str]:
    here = Path.cwd()
    roots = [folder for folder in (here, *here.parents) if (folder / "params.yaml").is_file() and (folder / "dvc.yaml").is_file()]
    names = [path.stem if path.is_file() else path.name for path in roots[-1].glob(pattern)] if roots else []
    return sorted(name for name in names if name.startswith(incomplete))


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Preset = Annotated[
    str | None, typer.Option(help="A file of presets/, by its name; without it, params.yaml as it is.", autocompletion=presets)
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting on top, for instance evolve_online.lr=1e-4.")
]
