"""One lock a checkout for what lives there once: cards, champion link, index, outbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ratchet.errors import RatchetError

WAIT_S = 120.0


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Holds `.ratchet/NAME.lock` of the checkout `root`. Not reentrant. The system frees it when a process is killed.

    Raises RatchetError where another process holds it for longer than WAIT_S.
    """
    path = root / ".ratchet" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=WAIT_S)
    try:
        lock.acquire()
    except Timeout:
        raise RatchetError(f"{path}: another process has held it for {WAIT_S:.0f} s; let that `ratchet` end, then try again") from None
    try:
        yield
    finally:
        lock.release()
