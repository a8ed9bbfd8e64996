"""What a kill leaves of files that DVC writes in place: put right before a run goes on, since DVC would refuse to start."""

import json
import os
import time
from pathlib import Path

from flows import workspace
from ratchet.errors import RatchetError

LOCK, RWLOCKS, ASIDE = "dvc.lock", ".dvc/tmp/**/rwlock", ".ratchet/damaged"
SETTLED_S = 2.0  # DVC makes a folder for a stage's record and writes it at once: one that stays empty for so long was left by a kill


def mend(folder: Path) -> list[str]:
    """Moves a torn dvc.lock aside, removes torn lists of DVC's locks and folders of its run cache that hold no record (DVC fails on
    them); returns what was done, a line each.

    Without its entry in dvc.lock DVC takes a stage from its cache, when the stage's inputs are the same. Does nothing where a run is at
    work in `folder`: then such a file may just be being written.
    """
    torn = [path for path in folder.glob(RWLOCKS) if not _is_json(path)]
    lock = folder / LOCK
    broken = lock.is_file() and not _is_lock_file(lock)
    empty = _empty_records(folder)
    if not torn and not broken and not empty:
        return []
    done = []
    try:
        with workspace.running(folder):
            for path in torn:
                path.unlink(missing_ok=True)
                done.append(f"{path}: torn by a kill, removed")
            for path in empty:
                path.rmdir()
                done.append(f"{path}: left empty by a kill, removed")
            if broken:
                aside = folder / ASIDE
                aside.mkdir(parents=True, exist_ok=True)
                os.replace(lock, aside / LOCK)
                done.append(f"{lock}: torn by a kill, put aside in {aside}; what it recorded is taken from DVC's cache")
    except RatchetError:
        return []
    return done


def _empty_records(folder: Path) -> list[Path]:
    """Folders of the run cache that a kill left before DVC wrote into them; the cache may be shared, so young ones are waited for."""
    empty = [path for path in (workspace.cache_of(folder) / "runs").glob("*/*") if _is_empty(path)]
    if empty:
        youngest = max(path.stat().st_mtime for path in empty)
        time.sleep(min(SETTLED_S, max(0.0, youngest + SETTLED_S - time.time())))
    return [path for path in empty if _is_empty(path)]


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


def _is_lock_file(path: Path) -> bool:
    """Whether DVC can read it and it records something."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import YAMLFileCorruptedError, parse_yaml
    from voluptuous import Invalid

    try:
        content = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        COMPILED_LOCKFILE_SCHEMA(content)
    except (YAMLFileCorruptedError, Invalid, UnicodeDecodeError):
        return False
    return bool(content)
