"""The run's page: one HTML file that needs nothing else, from the dictionary that `gather` returns."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup, escape

from ratchet.page import charts, figures, words
from ratchet.page.verdict import things, verdict

TEMPLATES = Path(__file__).parent / "templates"
COUNTED = ("groups", "zero_variance_groups", "skipped_steps")  # in a round's iterations
HEAD_CHARS, HEAD_LINES = 700, 10  # of a text shown before "more"
MOST_CHARS = 24_000  # of a text in the page at all
LONG_RUN = re.compile(r"\S{60}")  # browsers lay out an unbroken line of n characters in time n²
GOAL = re.compile(r"Your task is to: ([^\n]{1,300})")


def render(report: dict[str, Any]) -> str:
    """The page for `report`. The same dictionary gives the same text; everything in it is escaped."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8").strip()
    page = _environment().get_template("report.html.j2").render(
        report=report,
        verdict=verdict(report),
        things=things(report),
        css=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8").strip()),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        ratchet=figures.ratchet(report),
        loss=figures.warm_start_loss(report),
        online=figures.online(report),
        by_type=figures.by_type(report),
        episodes=[_episode(one) for one in report["episodes"]],
        checks={str(one["round"]): _checks(one) for one in report["rounds"]},
        soundness=[_soundness(one) for one in report["rounds"] if not words.skipped(one["online"])],
        settings=yaml.safe_dump(report["settings"], sort_keys=True, allow_unicode=True, width=100) if report["settings"] else "",
    )
    return page.encode("utf-8", "replace").decode("utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=ChainableUndefined, finalize=_finalize
    )
    for name in ("number", "percent", "level", "signed", "between", "between_signed", "short", "stratum", "round_name", "observed", "capital", "tiny"):
        environment.filters[name] = _tolerant(getattr(words, name))
    environment.filters["text_parts"] = text_parts
    environment.filters["breakable"] = breakable
    environment.globals.update(skipped=words.skipped, waivers=_waived, badge=figures.badge, wilson=figures.wilson, bar=charts.bar)
    return environment


def _tolerant(form: Callable) -> Callable:
    """`form`, with what an older or newer run did not write shown as a dash instead of an error."""
    return lambda value, *rest: form(None if isinstance(value, ChainableUndefined) else value, *rest)


def _finalize(value: Any) -> Any:
    """Whatever the template prints and is not our own markup has its control characters made visible."""
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


def _episode(episode: dict[str, Any]) -> dict[str, Any]:
    steps = episode["steps"]
    first = (steps[0].get("observation") or "") if steps else ""
    goal = GOAL.search(first)
    turns = [step | {"parts": reply_parts(step.get("reply") or "", step.get("action") or ""), "flags": _flags(step)} for step in steps]
    return episode | {
        "goal": goal.group(1).strip().removesuffix(".") if goal else None,
        "turns": turns,
        "invalid": sum(step.get("valid") is False for step in steps),
        "end": "solved" if episode["solved"] else "out of budget" if episode.get("truncated") else "ended unsolved",
    }


def _checks(one: dict[str, Any]) -> list[tuple[str, dict | None]]:
    """The round's verdicts: on the data it learned from and, where it says something else, on the evaluation's own rows."""
    second = (one["decision"] or {}).get("checks")
    found = [("Checks of the data", one["check"])]
    return found + ([("Checks of the evaluation's rows", second)] if second and second != one["check"] else [])


def _soundness(one: dict[str, Any]) -> dict[str, Any]:
    """A round's updates: how many groups taught nothing, what was skipped, and how far sampler and learner were apart at most."""
    curve = one["online"].get("curve") or []
    known = {name: [p[name] for p in curve if p.get(name) is not None] for name in (*COUNTED, "logprob_max_diff", "logprob_mean_diff")}
    sums = {name: sum(known[name]) if known[name] else None for name in COUNTED}
    largest = {name: max(known[name], default=None) for name in ("logprob_max_diff", "logprob_mean_diff")}
    return {"round": one["round"], "iterations": len(curve), **sums, **largest}


def _waived(one: dict[str, Any]) -> dict[str, str]:
    return {item["check"]: item["reason"] for item in (one["decision"] or {}).get("waived") or []}


def _flags(step: dict[str, Any]) -> list[str]:
    named = (("valid", False, "invalid"), ("repeated", True, "nothing new"), ("format_ok", False, "format"))
    return [word for key, bad, word in named if step.get(key) is bad]
