"""Drift as a page: every column with its score and limits, and both sides' distributions beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitoring.pages import bars, number, page, table, text


def drift_page(title: str, result: Mapping[str, Any]) -> str:
    """HTML of one file, from the JSON of tasks/drift.py."""
    if not result["columns"]:
        return page(title, [f"<p>{text(result.get('note') or 'Nothing to compare with.')}</p>"])
    rows = [
        (f'<span class="{one["level"]}">{one["level"]}</span>', f"<code>{text(one['name'])}</code>", text(one["against"]), text(one["detail"]),
         text(one["method"]), *(number(one[key]) for key in ("observed", "chance", "warn", "fail")))
        for one in sorted(result["columns"], key=lambda one: (("fail", "warn", "ok").index(one["level"]), one["name"], one["against"]))
    ]  # fmt: skip
    head = ("", "column", "against", "what", "method", "score", "by chance", "warn", "fail")
    parts = [
        f"<p>{_said(result['status'])} A score counts where it is beyond its limit and beyond chance, the largest score when it is drawn by "
        "lot which episode belongs to which side.</p>",
        table(head, rows, (5, 6, 7, 8)),
        '<p><span class="key one"></span> reference <span class="key two"></span> this version</p>',
    ]
    for one in result["columns"]:
        if shown := _distribution(one):
            parts += [f"<h2>{text(one['detail'])}, against {text(one['against'])}</h2>", shown]
    return page(title, parts)


def _said(status: str) -> str:
    return {
        "ok": "Nothing drifted beyond its limit.",
        "warn": "Something drifted beyond its warning limit.",
        "fail": "Something drifted beyond its limit: the version is not promoted, unless it is waived.",
    }[status]


def _distribution(one: Mapping[str, Any]) -> str:
    reference, current = one["reference"], one["current"]
    if "shares" in reference and "shares" in current:
        names = [*current["shares"], *(name for name in reference["shares"] if name not in current["shares"])]
        return bars((name or "(none)", reference["shares"].get(name, 0.0), current["shares"].get(name, 0.0)) for name in names)
    if one.get("by"):
        return bars((name, both["reference"], both["current"]) for name, both in one["by"].items())
    if "deciles" in reference and "deciles" in current:
        cells = [
            (text(name), number(side["mean"]), *(number(value) for value in side["deciles"]))
            for name, side in (("reference", reference), ("this version", current))
        ]
        return table(("", "mean", "least", *(f"{10 * i} %" for i in range(1, 10)), "most"), cells, range(1, 13))
    return ""
