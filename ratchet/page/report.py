"""The run's page: one HTML file that needs nothing else, from the dictionary that `gather` returns."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import yaml
from markupsafe import Markup

from ratchet.page import figures, words
from ratchet.page.environment import TEMPLATES, environment, episode_view
from ratchet.page.instruments import instruments
from ratchet.page.verdict import things, verdict

COUNTED = ("groups", "zero_variance_groups", "resampled_groups", "skipped_steps")  # in a round's iterations


def render(report: dict[str, Any]) -> str:
    """The page for `report`. The same dictionary gives the same text; everything in it is escaped."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8").strip()
    page = environment().get_template("report.html.j2").render(
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
        instruments=instruments(report),
        episodes=[episode_view(one) for one in report["episodes"]],
        checks={str(one["round"]): _checks(one) for one in report["rounds"]},
        soundness=[_soundness(one) for one in report["rounds"] if not words.skipped(one["online"])],
        waivers=_waived,
        badge=figures.badge,
        wilson=figures.wilson,
        settings=yaml.safe_dump(report["settings"], sort_keys=True, allow_unicode=True, width=100) if report["settings"] else "",
    )
    return page.encode("utf-8", "replace").decode("utf-8")


def _checks(one: dict[str, Any]) -> list[tuple[str, dict | None]]:
    """The round's verdicts: on the data it learned from and, where it says something else, on the evaluation's own rows."""
    second = (one["decision"] or {}).get("checks")
    found = [("Checks of the data", one["check"])]
    return found + ([("Checks of the evaluation's rows", second)] if second and second != one["check"] else [])


def _soundness(one: dict[str, Any]) -> dict[str, Any]:
    """A round's updates: how many groups taught nothing, what was skipped, and how far sampler and learner were apart at most."""
    curve = one["online"].get("curve") or []
    known = {name: [p[name] for p in curve if p.get(name) is not None] for name in (*COUNTED, "silent_share", "logprob_max_diff", "logprob_mean_diff")}
    sums = {name: sum(known[name]) if known[name] else None for name in COUNTED}
    largest = {name: max(known[name], default=None) for name in ("logprob_max_diff", "logprob_mean_diff")}
    silent = sum(known["silent_share"]) / len(known["silent_share"]) if known["silent_share"] else None
    return {"round": one["round"], "iterations": len(curve), **sums, "silent_share": silent, **largest}


def _waived(one: dict[str, Any]) -> dict[str, str]:
    return {item["check"]: item["reason"] for item in (one["decision"] or {}).get("waived") or []}
