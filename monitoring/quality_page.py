"""The verdict of the quality suite as a page: every check, what was seen, and the rows that broke it, by episode and step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitoring.pages import number, page, table, text


def verdict_page(title: str, verdict: Mapping[str, Any]) -> str:
    """HTML of one file, from a verdict's JSON."""
    checks = sorted(verdict["checks"], key=lambda one: (_rank(one), one["name"]))
    failed = [one for one in checks if not one["passed"]]
    said = f"{len(checks)} checks, {len(checks) - len(failed)} passed."
    if any(_state(one) == "fail" for one in failed):
        said += " The run stops: mend the data, or <code>ratchet waive CHECK --reason …</code>"
    rows = [
        (_told(one), f"<code>{text(one['name'])}</code>", text(one["detail"]), number(one["observed"]), _limit(one))
        for one in checks
    ]  # fmt: skip
    parts = [f"<p>{said}</p>", table(("", "check", "what it asks", "observed", "limit"), rows, (3, 4))]
    parts += [part for one in failed for part in _rows(one)]
    return page(title, parts)


def _state(check: Mapping[str, Any]) -> str:
    return "ok" if check["passed"] else "waived" if "waived" in check else check["severity"]


def _rank(check: Mapping[str, Any]) -> int:
    return ("fail", "waived", "warn", "ok").index(_state(check))


def _told(check: Mapping[str, Any]) -> str:
    state = _state(check)
    reason = f": {text(check['waived'])}" if state == "waived" else ""
    return f'<span class="{"warn" if state == "waived" else state}">{state}{reason}</span>'


def _limit(check: Mapping[str, Any]) -> str:
    return number(check["limit"])


def _rows(check: Mapping[str, Any]) -> list[str]:
    """The rows that a failed check names: `EPISODE:STEP`, or an episode, a task or a label's place alone."""
    if not check["rows"]:
        return []
    cells = []
    for row in check["rows"]:
        episode, _, step = str(row).rpartition(":")
        known = step.isdigit() or step == "null"
        cells.append((f"<code>{text(episode if known else row)}</code>", text(step) if known else ""))
    more = check["observed"] - len(cells) if isinstance(check["observed"], int) else 0
    note = f'<p class="quiet">and {more} more</p>' if more > 0 else ""
    shown = f'<p class="quiet">Turn by turn: <code>ratchet episode {cells[0][0].removeprefix("<code>").removesuffix("</code>")}</code></p>'
    about = check["name"].split(".")[0] in ("episodes", "steps", "labels", "buffer")
    return [f"<h2>{text(check['name'])}</h2>", table(("episode" if about else "row", "step"), cells, (1,)), note, shown if about else ""]
