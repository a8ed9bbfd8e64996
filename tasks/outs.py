"""Outs that are whole. From the moment a stage has made them until DVC has recorded them they are kept in its scratch folder.

DVC deletes a stage's outs before it runs the stage again, also those that a killed run had finished already. What lies in the
workspace are therefore links to (or copies of) `whole/`, the files there are never written to again, and `manifest.json` holds their
checksums. Once dvc.lock is younger than they are and speaks of their stage, DVC has recorded them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ratchet.errors import RatchetError
from ratchet.files import checksums, difference, flush_tree, let_go, put_aside, read_json, remove, write_json
from ratchet.yaml_files import read_yaml

OUTS, WHOLE, MANIFEST, PLACED = "outs", "whole", "manifest.json", "placed"


def keep(scratch: Path) -> None:
    """From here on the outs in `scratch` are whole: one rename, after all of them are on the disk."""
    outs = scratch / OUTS
    flush_tree(outs)
    let_go(scratch / WHOLE)
    write_json(scratch / MANIFEST, checksums(outs))
    os.replace(outs, scratch / WHOLE)


def place(scratch: Path, workspace: Path, paths: Sequence[str], after_each: Callable[[], None] = lambda: None) -> None:
    """Lays the whole outs into `workspace`, in place of whatever is there, and lets everything else in `scratch` go."""
    for relative in paths:
        source, target, new = scratch / WHOLE / relative, workspace / relative, scratch / "placing"
        remove(new)
        if source.is_dir():
            shutil.copytree(source, new, copy_function=_link, symlinks=True)
        else:
            _link(str(source), str(new))
        remove(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(new, target)
        after_each()
    for path in scratch.iterdir():
        if path.name not in (WHOLE, MANIFEST):
            remove(path)
    (scratch / PLACED).touch()


def kept(scratch: Path, workspace: Path) -> bool:
    """Whether whole outs are here that DVC has not recorded. Damaged ones are put aside and said."""
    if not (scratch / WHOLE).is_dir() or recorded(scratch, workspace):
        return False
    wrong = difference(scratch / WHOLE, read_json(scratch / MANIFEST))
    if wrong is not None:
        put_aside([scratch / WHOLE], f"{wrong}; the stage is run again")
    return wrong is None


def recorded(scratch: Path, workspace: Path) -> bool:
    """Whether dvc.lock was written since the outs of `scratch` became whole, and has an entry of their stage: DVC writes it after every
    stage that ran or came from its cache."""
    placed, manifest, lock = scratch / PLACED, scratch / MANIFEST, workspace / "dvc.lock"
    since = placed if placed.is_file() else manifest
    if not (scratch / WHOLE).is_dir() or not lock.is_file() or lock.stat().st_mtime_ns <= since.stat().st_mtime_ns:
        return False
    try:
        return scratch.parent.name in ((read_yaml(lock) or {}).get("stages") or {})
    except RatchetError:  # it is just being written
        return False


def forget_recorded(scratches: Path, workspace: Path) -> None:
    """Lets go of what was placed and DVC has recorded: `scratches` holds a folder a stage, and that one a configuration."""
    for placed in scratches.glob(f"*/*/{PLACED}"):
        if recorded(placed.parent, workspace):
            let_go(placed.parent)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target, follow_symlinks=False)
    return target
