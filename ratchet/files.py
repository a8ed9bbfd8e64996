"""JSON and hashes, written so that a kill leaves either the old file or the new one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` beside `path` and renames it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    os.replace(part, path)


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


def sha256_json(value: Any) -> str:
    """Hex digest of a JSON value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
