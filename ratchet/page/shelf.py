"""What the page reads of a checkout. Cards and files are read again only when they changed; nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from sqlalchemy import Engine

from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.store import outbox
from ratchet.store.approvals import Waiting, waiting
from ratchet.store.cards import Card, card_paths, read_cards
from ratchet.store.champions import champions
from ratchet.store.index import HERE, checkout_id

Stamp = tuple[tuple[str, int, int], ...]


class Run(Protocol):
    """A run as `ratchet runs` lists it."""

    @property
    def run_id(self) -> str: ...
    @property
    def workspace(self) -> Path: ...
    @property
    def state(self) -> str: ...
    @property
    def stages_done(self) -> int: ...
    @property
    def stages(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class Shelf:
    """`list_runs` gives the runs of the checkout, oldest first; `engine` is its index, and `by` whose name a decision carries."""

    def __init__(self, root: Path, engine: Engine, list_runs: Callable[[Path], Sequence[Run]], by: str = "") -> None:
        self.root, self.engine, self.list_runs, self.by = root, engine, list_runs, by
        self.checkout = checkout_id(root)
        self._kept: dict[str, tuple[Stamp, Any]] = {}
        self._lock = Lock()

    @property
    def registry(self) -> Path:
        return self.root / "registry"

    def cards(self) -> list[Card]:
        """All cards, oldest first. Raises RatchetError for a damaged one."""
        return self.kept("cards", card_paths(self.registry), lambda: read_cards(self.registry))

    def champions(self) -> dict[str, str]:
        """{line: version}."""
        return champions(self.registry)

    def waiting(self) -> list[Waiting]:
        """Versions that wait for a person's answer."""
        paths = [*card_paths(self.registry), self.registry / "champions.json", self.registry / "approvals"]
        return self.kept("waiting", paths, lambda: waiting(self.root))

    def runs(self) -> list[Run]:
        """The newest first."""
        return list(self.list_runs(self.root))[::-1]

    def workspace(self, run_id: str) -> Path | None:
        """The folder of a run that there is, or None. Only names that the runs folder lists lead anywhere."""
        if run_id == HERE:
            return self.root if (self.root / "data").is_dir() else None
        runs = self.root / "runs"
        known = {path.name: path for path in runs.iterdir() if path.is_dir()} if runs.is_dir() else {}
        return known.get(run_id)

    def alerts(self) -> tuple[list[outbox.Event], set[str], dict[str, dict[str, outbox.Delivery]]]:
        """(events, the newest first; ids of those that still wait; {event: {receiver: delivery}})."""
        folder = self.root / ".ratchet" / "outbox"
        folders = [one for one in (folder, folder / "delivered", folder / "alerts", folder / "alerts" / "settled") if one.is_dir()]

        def read() -> tuple[list[outbox.Event], set[str], dict[str, dict[str, outbox.Delivery]]]:
            waiting = outbox.pending(self.root)
            events = sorted([*waiting, *outbox.delivered(self.root)], key=lambda event: (event.at, event.id), reverse=True)
            return events, {event.id for event in waiting}, outbox.deliveries(self.root)

        return self.kept("alerts", folders, read)

    def kept(self, name: str, paths: Sequence[Path], read: Callable[[], Any]) -> Any:
        """What `read` gives, read again only when one of `paths` (files, or folders whose files are replaced) is another one."""
        stamp = _stamp(paths)
        with self._lock:
            known = self._kept.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        value = read()
        with self._lock:
            self._kept[name] = (stamp, value)
        return value


def part_of(path: Path) -> Any:
    """The JSON of a stage's out, or None where it is not there or cannot be read: a run's page shows what there is."""
    try:
        return read_json(path) if path.is_file() else None
    except RatchetError:
        return None


def _stamp(paths: Sequence[Path]) -> Stamp:
    found = []
    for path in paths:
        try:
            stat = path.stat()
        except FileNotFoundError:  # replaced while we look
            continue
        found.append((str(path), stat.st_mtime_ns, stat.st_size))
    return tuple(found)
