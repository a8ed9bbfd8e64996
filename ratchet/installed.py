"""What stands for the code in a project that uses the installed package: one fingerprint a part of it, which its stages depend on.

In a checkout of Ratchet a stage depends on the code itself (`ratchet/envs`). A project has no code of ours, so there it depends on
`installed/ratchet.envs`, a file with a hash of that part of the installed package. A new version of the package then makes those
stages run again whose code has changed, and no others.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from ratchet.envs.benchmarks import own_files
from ratchet.errors import RatchetError
from ratchet.files import sha256_files, sha256_json, write_bytes

FOLDER = "installed"
ROOMS = ("ratchet", "tasks", "monitoring")
OWN = "ratchet.envs"  # its fingerprint also covers the environment of one's own that env.name says
_CODE = re.compile(rf"(?<![\w./])(?:{'|'.join(ROOMS)})/[\w/]+(?:\.py)?")


def for_project(dvc_yaml: str) -> str:
    """A dvc.yaml whose stages depend on fingerprints in place of code; comments stay as they are."""
    lines = [line if line.lstrip().startswith("#") else _CODE.sub(lambda m: place(m.group()), line) for line in dvc_yaml.splitlines()]
    return "\n".join(lines) + "\n"


def place(code: str) -> str:
    """`ratchet/envs` → `installed/ratchet.envs`, `tasks/prepare.py` → `installed/tasks.prepare`."""
    return f"{FOLDER}/{code.removesuffix('.py').replace('/', '.')}"


def is_project(workspace: Path) -> bool:
    """Whether stages of this folder run the installed package instead of code of its own."""
    return (workspace / FOLDER).is_dir()


def renew(workspace: Path) -> list[str]:
    """Writes the fingerprints that dvc.yaml names, removes others, and returns the names of those that changed.

    Does nothing where the folder has code of its own. Raises RatchetError where dvc.yaml names a part that is not installed.
    """
    if not is_project(workspace):
        return []
    wanted = {name: fingerprint(name, workspace) for name in _named(workspace)}
    changed = [name for name, value in wanted.items() if _stored(workspace, name) != value]
    for name in changed:
        write_bytes(workspace / FOLDER / name, (wanted[name] + "\n").encode())
    for path in (workspace / FOLDER).iterdir():
        if path.name not in wanted:
            path.unlink()
            changed.append(path.name)
    return sorted(changed)


def require_current(workspace: Path, deps: list[str]) -> None:
    """Raises RatchetError where a stage with `deps` would record fingerprints of other code than what runs."""
    for dep in deps:
        folder, _, name = dep.partition("/")
        if folder == FOLDER and _stored(workspace, name) != fingerprint(name, workspace):
            raise RatchetError(f"{workspace / dep}: {name} of the installed package has changed since; run `ratchet render`, then this again")


def fingerprint(name: str, workspace: Path) -> str:
    """SHA-256 over the names and bytes of a part of the installed package, `tasks.prepare` or `ratchet.envs` for instance."""
    paths = _files(_located(name))
    names = [path.name for path in paths]
    if name == OWN:
        own = _own_environment(workspace)
        paths, names = paths + own, names + [path.name for path in own]
    return sha256_json([names, sha256_files(paths)])


def _named(workspace: Path) -> list[str]:
    stages = yaml.safe_load((workspace / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    deps = {dep for entry in stages.values() for dep in entry.get("do", entry).get("deps", [])}
    return sorted(dep.partition("/")[2] for dep in deps if dep.startswith(f"{FOLDER}/"))


def _stored(workspace: Path, name: str) -> str | None:
    path = workspace / FOLDER / name
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def _located(name: str) -> Path:
    room, *parts = name.split(".")
    spec = find_spec(room) if room in ROOMS else None
    base = Path(next(iter(spec.submodule_search_locations or []), "")) if spec else Path()
    path = base.joinpath(*parts)
    if spec is not None and path.is_dir():
        return path
    if spec is not None and path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    raise RatchetError(f"dvc.yaml: the installed package has no {name}; take the dvc.yaml of this version (`ratchet init` in a new folder)")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(one for one in path.rglob("*") if one.is_file() and "__pycache__" not in one.parts and one.suffix != ".pyc")


def _own_environment(workspace: Path) -> list[Path]:
    params: Any = yaml.safe_load((workspace / "params.yaml").read_text(encoding="utf-8"))
    return own_files(str((params.get("env") or {}).get("name")), workspace)
