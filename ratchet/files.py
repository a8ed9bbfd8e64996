"""JSON and hashes, written so that a kill or a loss of power leaves either the old file or the new one."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratchet.clock import CLOCK
from ratchet.errors import RatchetError

DAMAGED = "damaged"  # the folder, beside what was damaged, that it is put into; and how often that happened, in the process's counts
_TROUBLE = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "a file may not become as large as it has to be; raise the limit (`ulimit -f`), or take another file system",
    errno.EROFS: "the file system is read-only; make it writable",
    errno.EACCES: "permission is denied; give this user the right to write there",
    errno.EPERM: "it may not be changed; give this user the right to write there",
    errno.ENOTDIR: "what should be a folder is none; move it away",
    errno.EIO: "the disk reports an error; see to it",
}
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")  # safetensors and tokenizers raise no OSError


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` beside `path` and renames it into place."""
    with replacing(path) as part:
        part.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write a file to. At the end it is on the disk and renamed; where writing fails, nothing is left of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        flush(part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    flush(path.parent)


def flush(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk. Without it a rename may survive a loss of power, and the
    bytes that it was for may not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """`flush` for a file, or for a folder and all that is in it."""
    for path in [*folder.rglob("*"), folder] if folder.is_dir() else [folder]:
        if not path.is_symlink():
            flush(path)


def remove(path: Path) -> None:
    """A file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def let_go(folder: Path) -> None:
    """Removes a folder, if it is there, so that a kill leaves it whole or gone under its name, never in part."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    if folder.exists():
        os.replace(folder, gone)
        shutil.rmtree(gone)


def put_aside(paths: list[Path], why: str) -> None:
    """Moves files or folders that lie in one folder into its subfolder `damaged`, counts that, and says so in a line that ends with `why`."""
    aside = paths[0].parent / DAMAGED
    aside.mkdir(exist_ok=True)
    for path in paths:
        target = aside / path.name
        if target.is_dir():
            shutil.rmtree(target)
        if path.exists():
            os.replace(path, target)
    CLOCK.counts[DAMAGED] += 1
    logging.getLogger(__name__).warning("%s: damaged, put aside in %s; %s", paths[0], aside, why)


def storage_trouble(error: BaseException) -> str | None:
    """What is wrong with the disk and what to do, where that is why `error` was raised; else None."""
    found = _RUST_ERROR.search(str(error))
    number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
    if number not in _TROUBLE:
        return None
    where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
    return f"{where}{_TROUBLE[number]}"


def write_json(path: Path, value: Any) -> None:
    """Sorted keys, indent 1: the same value is always the same bytes. NaN is refused: JSON has none."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """Raises RatchetError where the file is missing or is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RatchetError(f"{path}: no such file; run the stage that writes it (`ratchet run` or `dvc repro`)") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RatchetError(f"{path}: not valid JSON ({error}); delete it and run the stage that writes it again") from None


def sha256_files(paths: list[Path]) -> str:
    """Hex digest over the files' bytes in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in `folder` and below, by its path in there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_files([path]) for path in files}


def difference(folder: Path, expected: dict[str, str]) -> str | None:
    """The first file of `folder` that is not what `checksums` found, and how; None where all are."""
    for name in sorted(expected):
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256_files([path]) != expected[name]:
            return f"{name} has other bytes than were written"
    return None


def sha256_json(value: Any) -> str:
    """Hex digest of a JSON value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
