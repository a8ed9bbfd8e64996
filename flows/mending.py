"""What a kill leaves of files that DVC writes in place: put right before a run goes on, since DVC would refuse to start."""

import json
import os
from pathlib import Path

from flows import workspace
from ratchet.errors import RatchetError

LOCK, RWLOCKS, ASIDE = "dvc.lock", ".dvc/tmp/**/rwlock", ".ratchet/damaged"


def mend(folder: Path) -> list[str]:
    """Moves a torn dvc.lock aside and removes torn lists of DVC's locks; returns what was done, a line each.

    Without its entry in dvc.lock DVC takes a stage from its cache, when the stage's inputs are the same. Does nothing where a run is at
    work in `folder`: then such a file may just be being written.
    """
    torn = [path for path in folder.glob(RWLOCKS) if not _is_json(path)]
    lock = folder / LOCK
    broken = lock.is_file() and not _is_lock_file(lock)
    if not torn and not broken:
        return []
    done = []
    try:
        with workspace.running(folder):
            for path in torn:
                path.unlink(missing_ok=True)
                done.append(f"{path}: torn by a kill, removed")
            if broken:
                aside = folder / ASIDE
                aside.mkdir(parents=True, exist_ok=True)
                os.replace(lock, aside / LOCK)
                done.append(f"{lock}: torn by a kill, put aside in {aside}; what it recorded is taken from DVC's cache")
    except RatchetError:
        return []
    return done


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
