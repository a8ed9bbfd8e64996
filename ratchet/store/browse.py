"""Lists of episodes with filters, page by page, from the index: what is counted comes from tallies, and only a page's rows are read.

Episodes are listed file by file, the newest run first and in it the last stage first, within a file by their ids. A page begins
after or ends before a cursor (file and episode), so the last page of a million costs what the first one does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, and_, case, false, func, select, true

from ratchet.store.loading import ERROR, SOLVED, TRUNCATED, UNSOLVED
from ratchet.store.tables import episodes, files, tallies

PAGE = 50
AT_ONCE = 500  # ids in one question
FAILED = "failed"  # unsolved or truncated
CHOICES = ("run", "stage", "round", "policy", "stratum", "outcome")
_STAGE = re.compile(r"data/rounds/(\d+)/([^/]+)/")
COLUMNS = (
    "file_id", "episode_id", "task_id", "stratum", "policy_id", "round", "iteration", "sample", "solved", "score", "truncated", "error",
    "n_steps", "n_tokens",
)  # fmt: skip

Cell = tuple[str, str | None, str | None, int | None, str, int]  # file, policy, stratum, round, outcome, how many


@dataclass(frozen=True)
class Filter:
    """What is wanted; None is all. `stage` is one such as `harvest@1`, `outcome` one of OUTCOMES or FAILED, `task` an id or its beginning."""

    run: str | None = None
    stage: str | None = None
    round: int | None = None
    policy: str | None = None
    stratum: str | None = None
    outcome: str | None = None
    task: str | None = None

    @property
    def given(self) -> dict[str, str]:
        """What was chosen, as it stands in an address."""
        return {one.name: str(value) for one in fields(self) if (value := getattr(self, one.name)) is not None}


@dataclass(frozen=True)
class File:
    """A file of episodes. `at` is how it is named in cursors; `content`, the hash of its bytes, tells when what is counted changed."""

    at: str
    run_id: str
    path: str
    content: str

    @property
    def stage(self) -> str:
        return stage_of(self.path)


@dataclass(frozen=True)
class Listing:
    """A page of episodes: `rows` with the run and stage of each, how many there are in all, cursors of the pages beside this one, and
    for each of CHOICES what can be chosen with how many there would be, the other filters as they are."""

    rows: list[dict[str, Any]]
    total: int
    after: str | None
    before: str | None
    choices: dict[str, dict[Any, int]]


def stage_of(path: str) -> str:
    """`data/rounds/1/harvest/episodes.parquet` → `harvest@1`, `data/final/episodes.parquet` → `final`."""
    found = _STAGE.match(path)
    return f"{found[2]}@{found[1]}" if found else path.split("/")[1]


def list_episodes(
    engine: Engine, checkout: str, wanted: Filter, after: str | None = None, before: str | None = None, size: int = PAGE
) -> Listing:
    """The first page, the one after the cursor `after`, or the one before `before`. A cursor that is none is the first page."""
    found = files_of(engine, checkout)
    counts, choices = _counted(engine, checkout, found, wanted)
    named = {one.at: one for one in found}
    order = [one.at for one in found if one.at in counts]
    backwards = after is None and before is not None
    with engine.connect() as connection:
        where = _where(wanted, connection)
        rows = _walk(connection, order, where, before if backwards else after, size + 1, backwards)
    more = len(rows) > size
    rows = rows[:size][::-1] if backwards else rows[:size]
    shown = [{**row._mapping, "run": named[row.file_id].run_id, "stage": named[row.file_id].stage} for row in rows]
    has_before, has_after = (more, True) if backwards else (_known(after, order) is not None, more)
    cursors = [f"{row.file_id}.{row.episode_id}" if there else None for row, there in ((rows[-1], has_after), (rows[0], has_before))] if rows else [None, None]
    return Listing(shown, sum(counts.values()), *cursors, choices)


def files_of(engine: Engine, checkout: str) -> tuple[File, ...]:
    """The checkout's files of episodes in the order of lists."""
    query = select(files.c.file_id, files.c.run_id, files.c.path, files.c.content, files.c.modified)
    with engine.connect() as connection:
        rows = connection.execute(query.where(files.c.checkout == checkout, files.c.kind == "episodes")).all()
    newest: dict[str, int] = {}
    for row in rows:
        newest[row.run_id] = max(newest.get(row.run_id, 0), row.modified)
    ordered = sorted(rows, key=lambda row: (newest[row.run_id], row.run_id, _place(row.path)), reverse=True)
    return tuple(File(row.file_id, row.run_id, row.path, row.content) for row in ordered)


def places_of(engine: Engine, checkout: str, prefix: str, limit: int = 20) -> list[tuple[str, str, str]]:
    """(episode id, run id, path) of the episode `prefix`, from each file that holds it; else of those whose id begins so, at most `limit`."""
    whole = episodes.c.episode_id
    query = select(whole, files.c.run_id, files.c.path).join(files).where(files.c.checkout == checkout).order_by(whole, files.c.file_id)
    with engine.connect() as connection:
        for is_it in (whole == prefix, _begins(whole, prefix)):
            if found := connection.execute(query.where(is_it).limit(limit)).all():
                return [(row.episode_id, row.run_id, row.path) for row in found]
    return []


def kept_of(engine: Engine, checkout: str, ids: Iterable[str]) -> set[str]:
    """Those of `ids` whose episodes are kept, in any file."""
    wanted, found = sorted(set(ids)), set()
    with engine.connect() as connection:
        for start in range(0, len(wanted), AT_ONCE):
            some = episodes.c.episode_id.in_(wanted[start : start + AT_ONCE])
            query = select(episodes.c.episode_id).join(files).where(files.c.checkout == checkout, some)
            found |= {row.episode_id for row in connection.execute(query)}
    return found


@lru_cache(maxsize=256)
def _counted(engine: Engine, checkout: str, found: tuple[File, ...], wanted: Filter) -> tuple[dict[str, int], dict[str, dict[Any, int]]]:
    """How many wanted episodes each file has, files without any left out; and by name of a filter: value → how many there would be with
    it, all other filters as they are."""
    per_file: Counter[str] = Counter()
    counts: dict[str, Counter[Any]] = {name: Counter() for name in CHOICES}
    by_file = {file.at: file for file in found}
    for cell in _cells(engine, checkout, found) if wanted.task is None else _cells_of(engine, checkout, wanted):
        file = by_file.get(cell[0])
        if file is None:
            continue  # taken up since the list of files was read
        values = {"run": file.run_id, "stage": file.stage, "round": cell[3], "policy": cell[1], "stratum": cell[2], "outcome": cell[4]}
        missed = [name for name in CHOICES if _is_missed(name, values[name], wanted)]
        per_file[file.at] += cell[-1] if not missed else 0
        for name in CHOICES if not missed else missed if len(missed) == 1 else ():
            counts[name][values[name]] += cell[-1]
    return {at: n for at, n in per_file.items() if n}, _ordered(counts, found)


def _ordered(counts: dict[str, Counter[Any]], found: tuple[File, ...]) -> dict[str, dict[Any, int]]:
    ordered = {name: dict(sorted(count.items(), key=lambda item: _sortable(item[0]))) for name, count in counts.items()}
    ordered["run"] = {file.run_id: counts["run"][file.run_id] for file in found if file.run_id in counts["run"]}
    ordered["stage"] = dict(sorted(counts["stage"].items(), key=lambda item: _place_of_stage(item[0])))
    outcome = counts["outcome"]
    shown = {SOLVED: outcome[SOLVED], FAILED: outcome[UNSOLVED] + outcome[TRUNCATED], TRUNCATED: outcome[TRUNCATED], ERROR: outcome[ERROR]}
    return ordered | {"outcome": {name: n for name, n in shown.items() if n}}


def _is_missed(name: str, value: Any, wanted: Filter) -> bool:
    chosen = getattr(wanted, name)
    return chosen is not None and value != chosen and not (chosen == FAILED and name == "outcome" and value in (UNSOLVED, TRUNCATED))


@lru_cache(maxsize=4)
def _cells(engine: Engine, checkout: str, found: tuple[File, ...]) -> list[Cell]:
    """Tallies of the checkout's files; `found` says when they have to be read again."""
    query = select(tallies.c.file_id, tallies.c.policy_id, tallies.c.stratum, tallies.c.round, tallies.c.outcome, tallies.c.n)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query.join(files).where(files.c.checkout == checkout))]


def _cells_of(engine: Engine, checkout: str, wanted: Filter) -> list[Cell]:
    """The same of the episodes of one task, or of the tasks whose id begins so."""
    c = episodes.c
    outcome = case((c.error.isnot(None), ERROR), (c.solved.is_(True), SOLVED), (c.truncated.is_(True), TRUNCATED), else_=UNSOLVED)
    keys = (c.file_id, c.policy_id, c.stratum, c.round, outcome.label("outcome"))
    with engine.connect() as connection:
        is_task = _where(Filter(task=wanted.task), connection)
        query = select(*keys, func.count()).join(files).where(files.c.checkout == checkout, is_task).group_by(*keys)
        return [tuple(row) for row in connection.execute(query)]


def _walk(
    connection: Connection, order: list[str], where: ColumnElement[bool], cursor: str | None, size: int, backwards: bool
) -> list[Row[Any]]:
    """At most `size` rows from a cursor on, over as many files as it takes."""
    order = order[::-1] if backwards else order
    begin = _known(cursor, order)
    rows: list[Row[Any]] = []
    key = episodes.c.episode_id
    for place in range(begin[0] if begin else 0, len(order)):
        query = select(*(episodes.c[name] for name in COLUMNS)).where(episodes.c.file_id == order[place], where)
        if begin is not None and place == begin[0]:
            query = query.where(key < begin[1] if backwards else key > begin[1])
        rows += connection.execute(query.order_by(key.desc() if backwards else key).limit(size - len(rows))).all()
        if len(rows) >= size:
            break
    return rows


def _where(wanted: Filter, connection: Connection) -> ColumnElement[bool]:
    """Everything that is of an episode itself; run and stage are of its file."""
    c = episodes.c
    by_outcome: dict[str, list[ColumnElement[bool]]] = {
        SOLVED: [c.error.is_(None), c.solved.is_(True)],
        UNSOLVED: [c.error.is_(None), c.solved.isnot(True), c.truncated.isnot(True)],
        TRUNCATED: [c.error.is_(None), c.solved.isnot(True), c.truncated.is_(True)],
        FAILED: [c.error.is_(None), c.solved.isnot(True)],
        ERROR: [c.error.isnot(None)],
    }
    plain = ((c.round, wanted.round), (c.policy_id, wanted.policy), (c.stratum, wanted.stratum))
    terms = [column == value for column, value in plain if value is not None]
    if wanted.outcome is not None:
        terms += by_outcome.get(wanted.outcome, [false()])
    if wanted.task is not None:
        is_whole = c.task_id == wanted.task
        there = connection.execute(select(c.task_id).where(is_whole).limit(1)).first() is not None
        terms.append(is_whole if there else _begins(c.task_id, wanted.task))
    return and_(true(), *terms)


def _begins(column: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """What lies between two texts depends on a database's collation, so the beginning itself is compared."""
    return func.substr(column, 1, len(text)) == text


def _known(cursor: str | None, order: list[str]) -> tuple[int, str] | None:
    """(place of the file, episode id) of a cursor."""
    at, _, episode_id = (cursor or "").partition(".")
    return (order.index(at), episode_id) if at in order else None


def _place(path: str) -> tuple[int, int, str]:
    """Where in a run a file is made: demonstrations, rounds in turn, and the final panel last."""
    found = _STAGE.match(path)
    if found:
        return 1, int(found[1]), path
    return (2 if path.startswith("data/final/") else 0), 0, path


def _place_of_stage(stage: str) -> tuple[int, int, str]:
    name, _, k = stage.partition("@")
    return _place(f"data/rounds/{k}/{name}/" if k else f"data/{name}/")


def _sortable(value: Any) -> tuple[bool, Any]:
    return value is None, value if value is not None else 0
