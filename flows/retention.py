"""`ratchet gc`: frees what old runs hold and nothing needs, and never what is live.

Live are: runs that are running, the newest `--keep` of the others, and of every run the weights of champions and of versions about
which something was decided, with their outcomes and games. Of the DVC cache everything is live that a dvc.lock of what stays, or of a
branch or tag, refers to. The cache is touched only while no run can be on or begin.
"""

import json as json_module
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flows import workspace
from flows.commands import root, show
from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.store.cards import read_cards
from ratchet.store.champions import champions

YOUNG_S = 3600.0  # what came into the cache since may belong to a `dvc repro` that has not written its dvc.lock yet
FREED = ("data", "models", ".ratchet/scratch")  # where a slimmed run loses files; settings, logs and reports stay
STAYS = ("data/games", "data/panels")  # small, and needed to play a version that stays


@dataclass
class Old:
    """A run that is not kept whole: `files` go. `versions` are what stays of it; without any the whole workspace goes."""

    run_id: str
    folder: Path
    versions: list[str]
    files: list[Path]


@dataclass
class Plan:
    """What a collection would do. `cache` is dead objects; `left_alone` says why the cache is not looked at."""

    kept: list[str]
    running: list[str]
    old: list[Old]
    cache: list[Path] = field(default_factory=list)
    left_alone: str | None = None

    @property
    def freed(self) -> int:
        """Bytes: of files whose every hard link goes."""
        paths = [*(path for one in self.old for path in one.files), *self.cache]
        stats = [path.lstat() for path in paths if os.path.lexists(path)]
        links = Counter((stat.st_dev, stat.st_ino) for stat in stats)
        size = {(stat.st_dev, stat.st_ino): stat for stat in stats}
        return sum(size[key].st_blocks * 512 for key, count in links.items() if size[key].st_nlink <= count)


def collect(keep: int, apply: bool, json: bool) -> None:
    """`ratchet gc`; without `apply` it only says what it would free."""
    if keep < 0:
        raise RatchetError(f"--keep {keep}: is no count of runs; 0 keeps only what is live")
    checkout = root()
    with ExitStack() as locks:
        plan = make_plan(checkout, keep, locks)
        freed = plan.freed
        if apply:
            _apply(checkout, plan)
    if json:
        print(json_module.dumps(_as_json(plan, freed, apply), indent=1))
        return
    _tell(plan, freed, keep, apply)


def make_plan(checkout: Path, keep: int, locks: ExitStack) -> Plan:
    """What would go. Every run that is not running is held by `locks`, and, where none is running, so is the making of new ones."""
    locks.enter_context(workspace.making(checkout))
    held, running = [], []
    for run in workspace.list_runs(checkout):
        starting = run.state == "new" and time.time() - workspace.made_at(run.workspace) < YOUNG_S  # made, and about to be held by its run
        (running if starting or not _hold(run.workspace, locks) else held).append(run)
    here_runs = not _hold(checkout, locks)
    kept, old = held[len(held) - min(keep, len(held)) :], held[: len(held) - min(keep, len(held))]
    protected = protected_folders(checkout)
    outcomes = _outcomes(checkout, set(protected.values()))
    found = [_old(run.run_id, run.workspace, protected, outcomes) for run in old]
    plan = Plan([run.run_id for run in kept], [run.run_id for run in running], [one for one in found if one.files])
    if running or here_runs:
        plan.left_alone = "a run is on, so the shared cache is left for another time"
        return plan
    cache = workspace.cache_of(checkout)
    if not cache.resolve().is_relative_to(checkout.resolve()):
        plan.left_alone = f"the cache {cache} lies outside, where others may use it; `dvc gc` knows how to ask them"
        return plan
    whole = [run.workspace for run in kept] + [checkout]
    plan.cache = dead_objects(cache, live_hashes(checkout, cache, whole, [run.workspace for run in old], protected))
    return plan


def protected_folders(checkout: Path) -> dict[Path, str]:
    """{model folder: version} of champions and of versions with decisions, wherever their weights are."""
    reigning = set(champions(checkout / "registry").values())
    cards = [card for card in read_cards(checkout / "registry") if card["decisions"] or card["version"] in reigning]
    return {(checkout / run["weights"]).resolve(): card["version"] for card in cards for run in card["runs"]}


def live_hashes(checkout: Path, cache: Path, whole: list[Path], slimmed: list[Path], protected: dict[Path, str]) -> set[str]:
    """Hashes of the objects that something refers to, those inside of folders included."""
    locks = [_lock_outs(folder / "dvc.lock") for folder in whole] + [_outs(text) for text in _committed_locks(checkout)]
    hashes = {one for outs in locks for one in outs.values()}
    for folder in slimmed:
        for path, one in _lock_outs(folder / "dvc.lock").items():
            place = (folder / path).resolve()
            if any(model == place or model.is_relative_to(place) or place.is_relative_to(model) for model in protected):
                hashes.add(one)
    for one in [one for one in hashes if one.endswith(".dir")]:
        listing = _object(cache, one)
        hashes |= {entry["md5"] for entry in read_json(listing)} if listing.is_file() else set()
    return hashes


def dead_objects(cache: Path, live: set[str]) -> list[Path]:
    """Objects of the cache that nobody refers to and that are not young."""
    limit = time.time() - YOUNG_S
    found = []
    for path in (cache / "files" / "md5").glob("??/*"):
        stat = path.lstat()
        if path.parent.name + path.name not in live and max(stat.st_mtime, stat.st_ctime) < limit:
            found.append(path)
    return sorted(found)


def _outcomes(checkout: Path, versions: set[str]) -> set[Path]:
    """Files with the outcomes of `versions`."""
    cards = [card for card in read_cards(checkout / "registry") if card["version"] in versions]
    return {(checkout / entry["outcomes"]).resolve() for card in cards for entry in card["evaluations"]}


def _old(run_id: str, folder: Path, protected: dict[Path, str], outcomes: set[Path]) -> Old:
    models = {path: version for path, version in protected.items() if path.is_relative_to(folder.resolve()) and (path / "ratchet.json").is_file()}
    if not models:
        return Old(run_id, folder, [], [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()])
    files = [path for name in FREED for path in (folder / name).rglob("*") if path.is_file() or path.is_symlink()]
    return Old(run_id, folder, sorted(set(models.values())), [path for path in files if not _stays(path, folder, set(models), outcomes)])


def _stays(path: Path, folder: Path, models: set[Path], outcomes: set[Path]) -> bool:
    real = path.parent.resolve() / path.name
    if real in outcomes or any(real.is_relative_to(model) for model in models):
        return True
    inside = path.relative_to(folder)
    if inside.parts[0] == "data":
        return path.suffix == ".json" or any(inside.is_relative_to(one) for one in STAYS)
    return inside.parts[0] == "models" and path.name == "candidates.json"


def _apply(checkout: Path, plan: Plan) -> None:
    for one in plan.old:
        if not one.versions:
            workspace.discard(checkout, one.folder)
            continue
        for path in one.files:
            path.unlink(missing_ok=True)
        for name in FREED:
            _remove_empty(one.folder / name)
    for path in plan.cache:
        path.unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def dvc_at_work(folder: Path) -> bool:
    """Whether a DVC process, a bare `dvc repro` for instance, reads or writes outs of this folder; by its own note, `rwlock`."""
    path = folder / ".dvc" / "tmp" / "rwlock"
    try:
        notes = json_module.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or just being written: then the next look sees it
        return path.is_file() and path.stat().st_size > 0
    holders = [one for kind in ("write", "read") for value in (notes.get(kind) or {}).values() for one in (value if isinstance(value, list) else [value])]
    return any(_is_alive(int(one["pid"])) for one in holders)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _hold(folder: Path, locks: ExitStack) -> bool:
    if dvc_at_work(folder):
        return False
    try:
        locks.enter_context(workspace.running(folder))
    except RatchetError:
        return False
    return True


def _lock_outs(path: Path) -> dict[str, str]:
    return _outs(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _outs(text: str) -> dict[str, str]:
    """{path: hash} of a dvc.lock."""
    stages = (yaml.safe_load(text) or {}).get("stages") or {}
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", []) if "md5" in out}


def _committed_locks(checkout: Path) -> Iterator[str]:
    """Texts of dvc.lock at HEAD and at each branch and tag that has one."""
    refs = workspace.git(checkout, "for-each-ref", "--format=%(refname)").split()
    for ref in [*refs, *(["HEAD"] if refs else [])]:
        if workspace.git(checkout, "ls-tree", ref, "dvc.lock").strip():
            yield workspace.git(checkout, "show", f"{ref}:dvc.lock")


def _object(cache: Path, digest: str) -> Path:
    return cache / "files" / "md5" / digest[:2] / digest[2:]


def _as_json(plan: Plan, freed: int, apply: bool) -> dict[str, Any]:
    old = [{"run": one.run_id, "removed": not one.versions, "versions_kept": one.versions, "files": len(one.files)} for one in plan.old]
    value = {"applied": apply, "freed_bytes": freed, "kept": plan.kept, "running": plan.running, "old": old}
    return value | {"cache_objects": len(plan.cache), "cache_left_alone": plan.left_alone}


def _tell(plan: Plan, freed: int, keep: int, apply: bool) -> None:
    print(f"kept whole: {', '.join(plan.kept) or 'none'}; running: {', '.join(plan.running) or 'none'}")
    rows = [
        {
            "run": one.run_id,
            "what goes": f"{len(one.files)} files" if one.versions else "all of it",
            "what stays": f"versions {', '.join(one.versions)}, their outcomes and games" if one.versions else "",
        }
        for one in plan.old
    ]
    show(rows, ["run", "what goes", "what stays"], False, "no run has anything to give")
    print(plan.left_alone or f"cache: {len(plan.cache)} objects that nothing refers to")
    size = f"{freed / 2**20:.1f} MiB"
    print(f"freed {size}" if apply else f"would free {size}; do it with `ratchet gc --keep {keep} --apply`")
