"""Pages about episodes: the list with filters, and one turn by turn with what meter and critic said beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from ratchet.errors import RatchetError
from ratchet.page import curves
from ratchet.page.environment import episode_view
from ratchet.page.shelf import Shelf
from ratchet.store.browse import CHOICES, FAILED, Filter, list_episodes, places_of, stage_of
from ratchet.store.episodes import MIN_PREFIX, read_episode
from ratchet.store.loading import ERROR, OUTCOMES, SOLVED, TRUNCATED, UNSOLVED

NAMES = {
    SOLVED: "Solved", FAILED: "Failed", UNSOLVED: "Ended unsolved", TRUNCATED: "Failed, out of budget", ERROR: "Environment error",
}  # fmt: skip
TITLES = {"run": "Run", "stage": "Stage", "round": "Round", "policy": "Policy", "stratum": "Task type", "outcome": "Outcome"}
MAX_CHOICE = 200  # characters of a filter; nothing of ours is longer


def filter_of(query: Mapping[str, str]) -> Filter:
    """What an address asks for. What cannot be a filter is left out."""
    given = {name: plain(value) for name in (*CHOICES, "task") if (value := query.get(name, "").strip())}
    number = given.pop("round", "")
    if given.get("outcome") not in (None, *OUTCOMES, FAILED):
        given.pop("outcome")
    is_round = number.isascii() and number.isdigit() and len(number) < 7
    return Filter(**given, round=int(number) if is_round else None)


def plain(text: str) -> str:
    """What a database can be asked: PostgreSQL has no NUL in texts, and the index none either."""
    return text[:MAX_CHOICE].replace("\x00", "\ufffd")


def episodes(shelf: Shelf, query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the list."""
    wanted = filter_of(query)
    cursors = [plain(text) if (text := query.get(name)) else None for name in ("after", "before")]
    found = list_episodes(shelf.engine, shelf.checkout, wanted, *cursors)
    given = wanted.given
    return {
        "wanted": given,
        "listing": found,
        "rows": [row | {"outcome": _outcome(row)} for row in found.rows],
        "fields": [_field(name, found.choices[name], given.get(name)) for name in CHOICES],
        "next": f"?{urlencode(given | {'after': found.after})}" if found.after else None,
        "previous": f"?{urlencode(given | {'before': found.before})}" if found.before else None,
    }


def _field(name: str, counts: dict[Any, int], chosen: str | None) -> dict[str, Any]:
    """A list of choices; what is chosen stays in it, even where nothing has it."""
    options = [(str(value), _title(name, value), n) for value, n in counts.items() if value is not None]
    if chosen is not None and chosen not in [one[0] for one in options]:
        options.insert(0, (chosen, _title(name, chosen), 0))
    return {"name": name, "title": TITLES[name], "options": options, "chosen": chosen}


def _title(name: str, value: Any) -> str:
    return NAMES.get(value, str(value)) if name == "outcome" else str(value)


def _outcome(row: dict[str, Any]) -> tuple[str, str]:
    if row["error"] is not None:
        return "error", "warn"
    return ("solved", "good") if row["solved"] else ("out of budget", "bad") if row["truncated"] else ("failed", "bad")


def episode(shelf: Shelf, text: str, run: str | None) -> dict[str, Any]:
    """One episode, by its id or the beginning of one. Raises RatchetError where it means none or several, or its file is damaged."""
    if len(text) < MIN_PREFIX:
        raise RatchetError(f"episode {text!r}: type at least {MIN_PREFIX} characters of its id")
    places = places_of(shelf.engine, shelf.checkout, plain(text))
    wanted = [place for place in places if run in (None, place[1])] or places
    ids = sorted({place[0] for place in wanted})
    if not ids:
        raise RatchetError(f"no episode {text!r} in the index; `ratchet sync` takes up what a bare `dvc repro` made")
    if len(ids) > 1:
        raise RatchetError(f"episode {text!r} is the beginning of several ids ({', '.join(ids[:3])}); type more of it")
    episode_id, run_id, path = wanted[0]
    workspace = shelf.workspace(run_id)
    if workspace is None:
        raise RatchetError(f"the folder of run {run_id} is gone; `ratchet index` forgets its episodes")
    found = read_episode(run_id, workspace, workspace / path, episode_id)
    lanes = curves.lanes(found.curves)
    view = episode_view(found.episode | {"steps": found.steps})
    for t, turn in enumerate(view["turns"]):
        turn["curves"] = curves.stretch(lanes, t) if lanes else None
        turn["dots"] = curves.dots(lanes, t) if lanes else None
        turn["numbers"] = [(lane, curves.said(lane, t)) for lane in lanes]
        turn["notes"] = _notes(found.credit, t)
    return {
        "e": view,
        "run_id": run_id,
        "stage": stage_of(path),
        "path": path,
        "lanes": lanes,
        "small": curves.small_charts(lanes),
        "outcome": _outcome(view | {"truncated": view.get("truncated")}),
        "others": [place for place in places if place[0] == episode_id and place[1:] != (run_id, path)],
    }


def _notes(credit: dict[str, list[dict[str, Any] | None]], t: int) -> list[str]:
    """What a curve does not show of a step: an answer of the meter that could not be read, a state it takes for lost, a label."""
    meter, labels = ((credit.get(name) or [None] * (t + 1))[t] for name in ("meter", "labels"))
    notes = []
    if meter is not None and meter.get("parsed") is False:
        notes.append("the meter's answer could not be read")
    elif meter is not None and meter.get("completable") is False:
        notes.append("the meter takes it for lost")
    if labels is not None and labels.get("ttg") is not None and meter is not None:
        notes.append(f"{labels['ttg']} tokens were to go")
    return notes
