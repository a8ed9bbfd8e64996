"""Where a run lives: `runs/ID/`, a git worktree of HEAD with what is changed or new copied in and a complete params.yaml.

DVC works in a worktree as in a checkout. Its cache is the checkout's, shared by links, so what one run made another does not make
again; its outs and its state are the workspace's own.
"""

import configparser
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ratchet import installed
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_bytes
from ratchet.settings import dump_params, load

RUNS = "runs"
IMPORTS = "imports"  # demonstrations from elsewhere; live once, in the checkout, and each run gets those that it names
REGISTRY = "registry"  # lives once, in the checkout
HERE = "here"  # the id of a run in the checkout itself
COPY_LIMIT = 2 * 2**30  # bytes of changed and new files; more is surely data that belongs into .gitignore
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Run:
    """A run as `ratchet runs` lists it; `state` is running, finished, failed, stopped, interrupted or new."""

    run_id: str
    workspace: Path
    state: str
    stages_done: int
    stages: int
    seconds: float


def find_root(start: Path) -> Path:
    """The checkout that `start` is in: the nearest folder above with params.yaml and dvc.yaml; of a workspace, the one it came from.

    Raises RatchetError where there is none.
    """
    folder = nearest(start)
    is_workspace = folder.parent.name == RUNS and (folder.parent.parent / "dvc.yaml").is_file()
    return folder.parent.parent if is_workspace else folder


def nearest(start: Path) -> Path:
    """The nearest folder from `start` upwards with params.yaml and dvc.yaml: a checkout, or a run's workspace."""
    for folder in (start, *start.parents):
        if (folder / "params.yaml").is_file() and (folder / "dvc.yaml").is_file():
            return folder
    raise RatchetError(f"{start}: no checkout of Ratchet here or above (params.yaml, dvc.yaml); change into one, or `ratchet init my-project`")


def new_id(name: str) -> str:
    """`NAME-YYYYmmdd-HHMMSS-xxxx`; the last part keeps two runs of one second apart."""
    if not _ID.fullmatch(name):
        raise RatchetError(f"{name!r}: not a usable name of a run; take letters, digits, dots, - and _, starting with a letter or digit")
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def create(root: Path, run_id: str, params: dict[str, Any]) -> Path:
    """Makes `runs/ID/` ready to run and returns it. Whatever was made is removed again when that fails.

    Raises RatchetError for a folder that is not a git repository's top, a repository without commits, a checkout whose changes
    cannot be copied, a folder without DVC, and a `start` that no version has.
    """
    check_repository(root)
    workspace = root / RUNS / run_id
    if workspace.exists():
        raise RatchetError(f"{workspace}: exists; continue it with `ratchet run --resume {run_id}`, or take another name")
    changed, deleted = _dirty(root)
    (root / RUNS).mkdir(exist_ok=True)
    with making(root):
        git(root, "worktree", "add", "--quiet", "--detach", str(workspace), "HEAD")
    try:
        _copy(root, workspace, changed, deleted)
        _share_cache(root, workspace)
        prepared = place_start(root, workspace, params)
        write_bytes(workspace / "params.yaml", dump_params(prepared).encode())
        place_imported(root, workspace, params)
        refresh_waivers(root, workspace)
        installed.renew(workspace)
    except BaseException:
        discard(root, workspace)
        raise
    return workspace


def open_here(root: Path) -> Path:
    """The checkout as a workspace. Raises RatchetError for params that cannot work, or a `start` that is not written down as an id."""
    settings = load(root / "params.yaml")
    if settings.start == "champion":
        raise RatchetError(
            "params.yaml: start: champion changes with the registry, and --here does not write params.yaml; write the version's id"
        )
    place_start(root, root, settings.model_dump())
    return root


def find(root: Path, run_id: str) -> Path:
    """The workspace of a run. Raises RatchetError naming the runs that there are."""
    workspace = root / RUNS / run_id
    if _ID.fullmatch(run_id) and (workspace / "params.yaml").is_file():
        return workspace
    known = [run.run_id for run in list_runs(root)]
    raise RatchetError(f"{run_id}: no such run; there is {', '.join(known[-5:]) or 'none yet, start one with `ratchet run`'}")


def list_runs(root: Path) -> list[Run]:
    """All workspaces, oldest first."""
    folders = [path for path in (root / RUNS).glob("*") if (path / "params.yaml").is_file()]
    return [_describe(folder) for folder in sorted(folders, key=lambda path: (made_at(path), path.name))]


def made_at(workspace: Path) -> float:
    """When a workspace was made, seconds since the epoch: git's note in it is written then and never again."""
    note = workspace / ".git"
    return (note if note.is_file() else workspace).stat().st_mtime


def remove(root: Path, run_id: str) -> None:
    """Deletes a workspace and git's note of it. Refused while it runs, and where a line's champion has its weights there."""
    workspace = find(root, run_id)
    for line, version in _champions_in(root, workspace).items():
        raise RatchetError(
            f"{run_id}: holds the weights of {version}, champion of line {line}; it goes when another run's version is champion, "
            f"or by hand, `git worktree remove --force {workspace}`"
        )
    with running(workspace):
        pass
    discard(root, workspace)


def _champions_in(root: Path, workspace: Path) -> dict[str, str]:
    """{line: version} of champions whose weights are in `workspace`."""
    from ratchet.store import cards, champions

    found = {}
    for line, version in champions.champions(root / "registry").items():
        weights = cards.weights_of(root, cards.read_card(root / "registry", version))
        if weights is not None and weights.resolve().is_relative_to(workspace.resolve()):
            found[line] = version
    return found


@contextmanager
def running(workspace: Path) -> Iterator[None]:
    """Holds the workspace for one run; raises RatchetError at once where another has it. A killed run leaves no lock behind."""
    with _lock(workspace / ".ratchet" / "run.lock", timeout=0):
        yield


@contextmanager
def making(root: Path) -> Iterator[None]:
    """Held while a workspace is made (git's worktree list has no lock of its own that waits), and by whoever must see none appear."""
    with _lock(root / ".ratchet" / "workspaces.lock", timeout=120):
        yield


def refresh_waivers(root: Path, workspace: Path) -> None:
    """Waivers live once, in the checkout; a run sees those of the moment it starts or resumes."""
    if workspace != root and (root / "waivers.yaml").is_file():
        write_bytes(workspace / "waivers.yaml", (root / "waivers.yaml").read_bytes())


def place_start(root: Path, workspace: Path, params: dict[str, Any]) -> dict[str, Any]:
    """Params whose `start` is a concrete version, with its weights at models/start; `scratch` stays what it is.

    The champion may change while a run lasts, so its id is written down once, when the run is made.
    """
    if params["start"] == "scratch":
        return params
    from ratchet.store import cards, champions

    card = champions.find(root / "registry", params["start"], params["line"])
    weights = cards.weights_of(root, card)
    if weights is None:
        raise RatchetError(f"start: the weights of version {card['version']} are no longer here; start from scratch or another version")
    target = workspace / "models" / "start"
    shutil.rmtree(target, ignore_errors=True)
    # plain copies: the registry's files may be read-only links into the cache
    shutil.copytree(weights, target, copy_function=shutil.copyfile)
    return {**params, "start": card["version"]}


def place_imported(root: Path, workspace: Path, params: dict[str, Any]) -> None:
    """Lays the demonstrations that `demonstrate.imported` names into a workspace. Raises RatchetError where there are none."""
    name = params["demonstrate"]["imported"]
    if name is None or workspace == root:
        return
    source = root / IMPORTS / name
    if not (source / "import.json").is_file():
        known = sorted(path.parent.name for path in (root / IMPORTS).glob("*/import.json"))
        raise RatchetError(f"demonstrate.imported: {name}: no such import; there is {', '.join(known) or 'none'} (`ratchet import FILE`)")
    shutil.copytree(source, workspace / IMPORTS / name)


def git(root: Path, *arguments: str) -> str:
    """git's output. Raises RatchetError with the last line of what git says."""
    # a hook's GIT_DIR would point every command at the hook's repository
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", *arguments], cwd=root, env=env, capture_output=True, text=True, timeout=600
        )
    except FileNotFoundError:
        raise RatchetError("git is not installed; a run needs it to copy the checkout, or use `ratchet run --here`") from None
    if done.returncode:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise RatchetError(f"git {arguments[0]} in {root}: {said}; correct that, or use `ratchet run --here`")
    return done.stdout


def check_repository(root: Path) -> None:
    """Raises RatchetError where no workspace can be made of a folder: no git, no commit, no DVC."""
    try:
        top = Path(git(root, "rev-parse", "--show-toplevel").strip())
    except RatchetError as error:
        if "not a git repository" not in str(error):
            raise
        raise RatchetError(f"{root}: not a git repository, so no workspace can be made; `git init` and commit, or `--here`") from None
    if top.resolve() != root.resolve():
        raise RatchetError(f"{root}: not the top of its git repository ({top}); put the checkout there, or use `ratchet run --here`")
    try:
        git(root, "rev-parse", "--quiet", "--verify", "HEAD^{commit}")
    except RatchetError:
        raise RatchetError(f"{root}: the repository has no commit yet; commit once, or use `ratchet run --here`") from None
    if not (root / ".dvc").is_dir():
        raise RatchetError(f"{root}: no .dvc folder; run `dvc init` and commit it")


def _dirty(root: Path) -> tuple[list[str], list[str]]:
    """(changed or new, deleted) paths relative to `root`, without what is ignored."""
    status = git(root, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=none")
    changed, deleted = [], []
    for entry in filter(None, status.split("\0")):
        state, path = entry[:2], entry[3:]
        if path.split("/")[0] in (RUNS, REGISTRY):
            continue
        if "U" in state or state in ("AA", "DD"):
            raise RatchetError(f"{root / path}: in an unresolved merge conflict; resolve it before a run")
        if (root / path).is_dir() and not (root / path).is_symlink():
            raise RatchetError(f"{root / path}: a git repository inside the checkout cannot be copied; commit or ignore it")
        (changed if os.path.lexists(root / path) else deleted).append(path)
    total = sum((root / path).lstat().st_size for path in changed)
    if total > COPY_LIMIT:
        largest = max(changed, key=lambda path: (root / path).lstat().st_size)
        raise RatchetError(f"{root / largest}: changed and new files are {total / 2**30:.1f} GiB; ignore data in .gitignore")
    return changed, deleted


def _copy(root: Path, workspace: Path, changed: list[str], deleted: list[str]) -> None:
    for path in deleted:
        (workspace / path).unlink(missing_ok=True)
    for path in changed:
        target = workspace / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(root / path, target, follow_symlinks=False)
        except OSError as error:
            raise RatchetError(f"{root / path}: cannot be copied into the workspace ({error.strerror}); correct or ignore it") from None


def _share_cache(root: Path, workspace: Path) -> None:
    """The checkout's local DVC settings (remotes, say), plus the shared cache by links and a state of the workspace's own."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(root / ".dvc" / "config.local", encoding="utf-8")
    for section in ("cache", "core"):
        if not config.has_section(section):
            config.add_section(section)
    config["cache"]["dir"] = str(cache_of(root))
    # hard links are read-only; that is safe, since DVC removes a stage's outs before it runs it
    config["cache"]["type"] = "reflink,hardlink,copy"
    config["core"]["site_cache_dir"] = str(workspace / ".dvc" / "tmp" / "site")
    with (workspace / ".dvc" / "config.local").open("w", encoding="utf-8") as file:
        config.write(file)


def cache_of(root: Path) -> Path:
    """The folder of the checkout's DVC cache."""
    from dvc.config import Config

    configured = Config(str(root / ".dvc"), validate=False).get("cache", {}).get("dir")
    return Path(configured or root / ".dvc" / "cache")


def _describe(workspace: Path) -> Run:
    path = workspace / "logs" / "run.json"
    record = read_json(path) if path.is_file() else {}
    done = record.get("stages", [])
    state = record.get("state", "new")
    if state == "running" and not is_held(workspace):
        state = "killed"
    seconds = sum(stage["seconds"] for stage in done)
    finished = sum(stage["state"] != "failed" for stage in done)
    return Run(workspace.name, workspace, state, finished, len(record.get("order", [])), seconds)


def is_held(workspace: Path) -> bool:
    try:
        with running(workspace):
            return False
    except RatchetError:
        return True


def discard(root: Path, workspace: Path) -> None:
    """Deletes a workspace, whatever it holds, and git's note of it."""
    shutil.rmtree(workspace, ignore_errors=True)
    git(root, "worktree", "prune")


@contextmanager
def _lock(path: Path, timeout: float) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise RatchetError(
            f"{path.parent.parent}: another run is at work there; wait for it, or start one of its own with `ratchet run`"
        ) from None
    try:
        yield
    finally:
        lock.release()
