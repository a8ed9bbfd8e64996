"""One whole episode out of a run's files, with what labels, meter and critic said of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.store.index import GLOBS, workspaces

IN_PROGRESS = ".ratchet/scratch/*/*/parts/*.episodes.parquet"  # shards of stages that have not ended yet
MIN_PREFIX = 4
SIDECARS = {
    "labels": ("r_aux", "ttg"),
    "meter": ("completable", "p", "remaining", "parsed", "cost", "delta", "weight"),
    "critic": ("value", "q", "advantage", "weight"),
}
HELD_OUT = "scores.parquet"  # what a meter said of the harvest's episodes that it was judged on
HEAVY = ("prompt_ids", "reply_ids", "logprobs", "entropy")  # of a step; for machines that read the Parquet file itself

Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """An episode, its steps in order, and the file that holds it.

    `credit` has, by the name of a sidecar, one row a step or None where it has none; a sidecar without the episode is left out. `beside`
    names those that lie beside the episodes, and so say what an online round did.
    """

    run_id: str
    path: Path
    episode: Row
    steps: list[Row]
    credit: dict[str, list[Row | None]] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()

    @property
    def curves(self) -> dict[str, list[float | None]]:
        """What is drawn beside the text, one number a step: meter cost, value, advantage and weight, those that there are.

        In an online round a weight is what the step's advantage was multiplied with; in a buffer it is the step's in the critic's fit.
        """
        meter, critic = self.credit.get("meter"), self.credit.get("critic")
        named = {
            "cost": _column(meter, "cost"),
            "value": _column(critic, "value"),
            "advantage": _column(critic, "advantage"),
            "weight": _column(meter, "weight") or (_column(critic, "weight") if "critic" in self.beside else None),
            "fit_weight": None if "critic" in self.beside else _column(critic, "weight"),
        }
        return {name: values for name, values in named.items() if values}


def find_episode(checkout: Path, prefix: str, run: str | None = None) -> Found:
    """The episode whose id begins with `prefix`; the same one in several files (a run that was repeated) is taken from the first.

    Raises RatchetError for none, for several, and for fewer than four characters.
    """
    if len(prefix) < MIN_PREFIX:
        raise RatchetError(f"episode {prefix!r}: type at least {MIN_PREFIX} characters of its id (the report and its JSON show ids)")
    ids: dict[str, tuple[str, Path, Path]] = {}
    for run_id, workspace, path in _files(checkout, run):
        column = read_table(path, "episodes", ["episode_id"])["episode_id"]
        for one in column.filter(pc.starts_with(column, prefix)).to_pylist():
            ids.setdefault(one, (run_id, workspace, path))
    if not ids:
        raise RatchetError(f"no episode {prefix!r} in {run or 'any run'}; `ratchet runs` lists the runs, a run's report.html shows episodes with ids")
    if len(ids) > 1:
        shown = ", ".join(sorted(ids)[:3])
        raise RatchetError(f"episode {prefix!r} is the beginning of {len(ids)} ids ({shown}); type more of it, or say which --run")
    episode_id, (run_id, workspace, path) = next(iter(ids.items()))
    return read_episode(run_id, workspace, path, episode_id)


def read_episode(run_id: str, workspace: Path, path: Path, episode_id: str) -> Found:
    """An episode of the file `path` in a run's workspace. Raises RatchetError where it is not in there, or a file is damaged."""
    episodes = _rows(path, episode_id, kind="episodes")
    if not episodes:
        raise RatchetError(f"{path}: no longer holds episode {episode_id!r}; `ratchet index` takes up what changed")
    steps = sorted(_rows(steps_path(path), episode_id, kind="steps"), key=lambda step: step["t"])
    found = {name: one for name in SIDECARS if (one := _sidecar(workspace, path, name, episode_id, len(steps))) is not None}
    beside = frozenset(name for name, (file, _) in found.items() if file.parent == path.parent)
    return Found(run_id, path, episodes[0], steps, {name: rows for name, (_, rows) in found.items()}, beside)


def steps_path(episodes: Path) -> Path:
    """The file of steps beside a file of episodes."""
    return episodes.with_name(episodes.name.replace("episodes.parquet", "steps.parquet"))


def _files(checkout: Path, run: str | None) -> Iterator[tuple[str, Path, Path]]:
    """(run id, workspace, episodes file), the newest run first."""
    known = workspaces(checkout)
    if run is not None and run not in [name for name, _ in known]:
        raise RatchetError(f"--run {run}: no such run; `ratchet runs` lists them")
    for run_id, workspace in reversed(known):
        if run in (None, run_id):
            for pattern in (*GLOBS["episodes"], IN_PROGRESS):
                yield from ((run_id, workspace, path) for path in sorted(workspace.glob(pattern)) if not path.name.startswith("."))


def _rows(path: Path, episode_id: str, kind: str) -> list[Row]:
    """The episode's rows without token lists. What a damaged or newer file is called, `read_table` says."""
    read_table(path, kind, ["episode_id"])
    names = [name for name in pq.read_schema(path).names if name not in HEAVY]
    return _only(path, episode_id, names)


def _sidecar(workspace: Path, path: Path, name: str, episode_id: str, n_steps: int) -> tuple[Path, list[Row | None]] | None:
    """The first sidecar that has the episode, and one row a step out of it; None where there is none."""
    for candidate in _sidecar_files(workspace, path, name):
        rows = {row["t"]: row for row in _only(candidate, episode_id, ["episode_id", "t", *SIDECARS[name]])}
        if rows:
            return candidate, [rows.get(t) for t in range(n_steps)]
    return None


def _sidecar_files(workspace: Path, path: Path, name: str) -> list[Path]:
    """Where a sidecar may lie: beside its episodes; else in the round's folders that hold one for data of before, the newest first."""
    rounds = sorted((workspace / "data" / "rounds").glob("[0-9]*"), key=lambda folder: (len(folder.name), folder.name), reverse=True)
    folders = ("labels",) if name == "labels" else ("critic", "meter", "buffer")
    near = [path.parent / f"{name}.parquet", path.parent.parent / "labels" / f"{name}.parquet"]
    wanted = near + [folder / inner / f"{name}.parquet" for folder in rounds for inner in folders]
    wanted += [folder / "meter" / HELD_OUT for folder in rounds] if name == "meter" else []
    return [one for one in dict.fromkeys(wanted) if one.is_file()]


def _only(path: Path, episode_id: str, names: list[str]) -> list[Row]:
    """The columns `names`, those that the file has, of one episode. NaN is None: nothing can be said of that step."""
    try:
        there = set(pq.read_schema(path).names)
        columns = [name for name in names if name in there]
        table = pq.read_table(path, columns=columns, filters=[("episode_id", "=", episode_id)])
    except (pa.ArrowException, OSError) as error:
        raise RatchetError(f"{path}: damaged Parquet file ({str(error).splitlines()[0]}); delete it and run its stage again") from None
    return [{key: _finite(value) for key, value in row.items()} for row in table.to_pylist()]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _column(rows: list[Row | None] | None, name: str) -> list[float | None] | None:
    """A column as numbers; None where no row has one."""
    values = [None if row is None or row.get(name) is None else float(row[name]) for row in rows or []]
    return values if any(value is not None for value in values) else None
