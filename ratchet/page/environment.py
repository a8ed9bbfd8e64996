"""How templates print: everything escaped, numbers as people write them, foreign text so that it can only be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup, escape

from ratchet.page import charts, words

TEMPLATES = Path(__file__).parent / "templates"
HEAD_CHARS, HEAD_LINES = 700, 10  # of a text shown before "more"
MOST_CHARS = 24_000  # of a text in a page at all
LONG_RUN = re.compile(r"\S{60}")  # browsers lay out an unbroken line of n characters in time n²
GOAL = re.compile(r"Your task is to: ([^\n]{1,300})")
FILTERS = (
    "number", "percent", "level", "signed", "between", "between_signed", "short", "stratum", "round_name", "observed", "capital", "tiny", "when",
    "duration", "place",
)  # fmt: skip


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The one that all pages share; its templates are compiled once."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=ChainableUndefined, finalize=_finalize
    )
    for name in FILTERS:
        made.filters[name] = _tolerant(getattr(words, name))
    made.filters["text_parts"] = text_parts
    made.filters["breakable"] = breakable
    made.globals.update(skipped=words.skipped, bar=charts.bar, NONE=words.NONE)
    return made


def _tolerant(form: Callable) -> Callable:
    """`form`, with what an older or newer run did not write shown as a dash instead of an error."""
    return lambda value, *rest: form(None if isinstance(value, ChainableUndefined) else value, *rest)


def _finalize(value: Any) -> Any:
    """Whatever a template prints and is not our own markup has its control characters made visible."""
    if value is None or isinstance(value, ChainableUndefined):
        return words.NONE
    return words.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def text_parts(text: str | None) -> dict[str, Any]:
    """`{"head", "rest", "left"}`: what is shown at once, what behind "more", and how many characters not at all."""
    text = text or ""
    lines = text.split("\n")
    head = "\n".join(lines[:HEAD_LINES])
    if len(head) > HEAD_CHARS:
        head = head[:HEAD_CHARS]
    if len(text) - len(head) < 80:
        head = text
    return {"head": head, "rest": text[len(head) : MOST_CHARS], "left": max(0, len(text) - MOST_CHARS)}


def breakable(text: str) -> Markup:
    """`text`, cleaned and escaped, with places to break within very long runs of characters."""
    text, start, parts = words.clean(text), 0, []
    for run in LONG_RUN.finditer(text):
        parts.append(escape(text[start : run.end()]))
        start = run.end()
    return Markup("<wbr>").join([*parts, escape(text[start:])])


def reply_parts(reply: str, action: str) -> dict[str, Any]:
    """The reply around its action, which is a literal span of it; `found` is False where it is none."""
    at = reply.rfind(action) if action else -1
    if at < 0:
        return {"before": reply, "mark": "", "action": action, "after": "", "found": not action}
    before, mark = reply[:at], ""
    if before == "> " or before.endswith("\n> "):
        before, mark = before[:-2].removesuffix("\n"), "> "
    return {"before": before, "mark": mark, "action": action, "after": reply[at + len(action) :], "found": True}


def episode_view(episode: dict[str, Any]) -> dict[str, Any]:
    """An episode with `steps`, as pages show it: with goal, turns, how many actions were refused, and how it ended."""
    steps = episode["steps"]
    first = (steps[0].get("observation") or "") if steps else ""
    goal = GOAL.search(first)
    turns = [step | {"parts": reply_parts(step.get("reply") or "", step.get("action") or ""), "flags": _flags(step)} for step in steps]
    end = "solved" if episode["solved"] else "out of budget" if episode.get("truncated") else "ended unsolved"
    return episode | {
        "goal": goal.group(1).strip().removesuffix(".") if goal else None,
        "turns": turns,
        "invalid": sum(step.get("valid") is False for step in steps),
        "end": "ended by an error" if episode.get("error") is not None else end,
    }


def _flags(step: dict[str, Any]) -> list[str]:
    named = (("valid", False, "invalid"), ("repeated", True, "nothing new"), ("format_ok", False, "format"))
    return [word for key, bad, word in named if step.get(key) is bad]
