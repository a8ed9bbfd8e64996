"""`ratchet init`: a project of one's own, a git repository that runs the installed package."""

from importlib.metadata import version
from pathlib import Path

from flows.workspace import git
from ratchet import installed
from ratchet.errors import RatchetError
from ratchet.files import remove, write_bytes

PACKAGE = "ratchet-agents"
INSTALLED_TEMPLATE = Path(__file__).parent / "template"  # in a wheel; setup.py puts it there
FILES = ("params.yaml", "params.schema.json", "waivers.yaml", ".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore")
OPTIONAL = ("prefect.yaml",)
README = """# {name}

A project of Ratchet: it trains language agents, and keeps a new version only when it is measurably better. The code is the
installed package `{package}` (made with {version}); here is what is yours.

```sh
ratchet doctor                  # what this machine has, and what each preset needs
ratchet plan --preset smoke     # how long a run would take, and how much disk
ratchet run --preset smoke      # every stage in about a minute; its numbers mean nothing
ratchet run                     # what params.yaml says
ratchet watch                   # follow it from another terminal
ratchet versions                # what came of it
```

| file | what it is |
|---|---|
| `params.yaml` | all settings of a run; `ratchet use PRESET` writes a preset's into it |
| `presets/` | differences to it, by name; add your own |
| `dvc.yaml` | the stages; you need not touch it |
| `installed/` | fingerprints of the installed package, so that stages run again when its code changes; `ratchet run` renews them |
| `waivers.yaml` | failed checks that you accept, with the reason (`ratchet waive`) |
| `registry/` | after a run: one card a version. Commit it, it is what you know |
| `runs/`, `models/` | after a run: workspaces and the champion's weights; not in git |

An environment of your own is a module beside `params.yaml`: `ratchet run --set env.name=my_environment:MyBenchmark`.
"""


def init(folder: Path) -> None:
    """`ratchet init`."""
    create(folder)
    print(f"{folder}: a project of {PACKAGE} {version(PACKAGE)}, committed to git; next:")
    print(f"  cd {folder}\n  ratchet doctor\n  ratchet run --preset smoke")


def create(folder: Path) -> None:
    """Makes the project and its first commit. Raises RatchetError for a folder that holds something; leaves nothing half made."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RatchetError(f"{folder}: exists and is not empty; name a new folder")
    there = folder.exists()
    try:
        lay(folder)
        git(folder, "init", "--quiet")
        git(folder, "add", "--all")
        git(folder, *_identity(folder), "commit", "--quiet", "--message", f"A project of {PACKAGE} {version(PACKAGE)}")
    except BaseException:
        for path in folder.iterdir() if there and folder.is_dir() else [folder]:
            remove(path)
        raise


def lay(folder: Path) -> None:
    """Writes the files of a project into `folder`, without git."""
    source = template()
    for name in [*FILES, *(name for name in OPTIONAL if (source / name).is_file())]:
        write_bytes(folder / name, (source / name).read_bytes())
    for preset in sorted((source / "presets").glob("*.yaml")):
        write_bytes(folder / "presets" / preset.name, preset.read_bytes())
    write_bytes(folder / "dvc.yaml", installed.for_project((source / "dvc.yaml").read_text(encoding="utf-8")).encode())
    (folder / installed.FOLDER).mkdir()
    installed.renew(folder)
    readme = README.format(name=folder.resolve().name, package=PACKAGE, version=version(PACKAGE))
    write_bytes(folder / "README.md", readme.encode())


def template() -> Path:
    """The folder with the files that a project begins with: part of an installed wheel, else the checkout the package is run from."""
    checkout = Path(__file__).parents[1]
    for folder in (INSTALLED_TEMPLATE, checkout):
        if (folder / "params.yaml").is_file() and (folder / "dvc.yaml").is_file():
            return folder
    raise RatchetError(f"{INSTALLED_TEMPLATE}: the package was installed without its templates; install {PACKAGE} again")


def _identity(folder: Path) -> list[str]:
    """git's options for a commit where nobody has told git a name."""
    try:
        git(folder, "config", "user.email")
    except RatchetError:
        return ["-c", "user.name=ratchet init", "-c", "user.email=ratchet@localhost"]
    return []
