"""Which charts the page has, each with the table that says the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from markupsafe import Markup

from ratchet.page import charts
from ratchet.page.charts import Line, Mark, Panel, Tooth
from ratchet.page.words import (
    EVENTS,
    between,
    between_signed,
    capital,
    number,
    percent,
    round_name,
    short,
    signed,
    skipped,
    stratum,
)

ACTOR_CSS = ("c-new", "c-third", "c-fourth", "c-warm")
NARROW = 340
MOST_ROWS = 40  # of a table beside a curve


@dataclass(frozen=True)
class Figure:
    title: str
    wide: Markup
    head: list[str]
    rows: list[list[str]]
    narrow: Markup | None = None
    note: str = ""
    keys: list[tuple[str, str, bool]] = field(default_factory=list)  # (name, css, hollow)


def wilson(share: float, n: int, z: float = 1.959963984540054) -> dict[str, float]:
    """Wilson's 95 % interval of a share of `n` independent episodes."""
    centre, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return {"mean": share, "low": max(0.0, (centre - half) / scale), "high": min(1.0, (centre + half) / scale)}


def whole(value: float) -> str:
    return percent(value, 0)


def ratchet(report: dict) -> Figure | None:
    """The run as a ratchet: success on the confirm panel by round, and who was champion after it."""
    success = {
        one["evaluation"]["version"]: one["evaluation"]["confirm"]["success"]
        for one in report["rounds"]
        if not skipped(one["evaluation"]) and one["evaluation"].get("confirm")
    }
    teeth, rows = [], []
    for one in report["rounds"]:
        evaluation, decision = one["evaluation"] or {}, one["decision"] or {}
        own = success.get(evaluation.get("version")) if not skipped(one["evaluation"]) else None
        champion = success.get((decision.get("champion") or {}).get("version"))
        note, tone = badge(one)
        name = capital(round_name(one["round"]))
        teeth.append(
            Tooth(
                name,
                note,
                tone,
                *((own["mean"], own["low"], own["high"]) if own else (None, None, None)),
                champion=champion["mean"] if champion else None,
                became=own is not None and own is champion,
            )
        )
        rows.append([name, evaluation.get("version") or "–", percent(own["mean"]) if own else "–", between(own), note])
    if not success:
        return None
    title = "Success on the confirm panel, round by round"
    desc = "; ".join(f"{row[0]}: {row[2]} ({row[3]}), {row[4]}" for row in rows)
    note = "Dots: versions with 95\u202f% intervals; hollow ones did not become champion. The broad line is the champion's success."
    draw = lambda width, height: charts.ratchet_chart(title, desc, teeth, whole, width, height)
    return Figure(title, draw(880, 300), ["Round", "Version", "Success", "95\u202f% interval", "Decision"], rows, draw(NARROW, 270), note)


def badge(one: dict) -> tuple[str, str]:
    """(words, tone) for what became of a round."""
    decision = one["decision"]
    if decision is None:
        return "not run", "calm"
    if decision.get("skipped"):
        return "skipped", "calm"
    return EVENTS.get(decision.get("event"), (str(decision.get("event")), "calm"))


def warm_start_loss(report: dict) -> Figure | None:
    lines, rows = [], []
    actors = sorted(report["warm_start"].items(), key=lambda item: item[1]["order"])
    for (name, entry), css in zip(actors, ACTOR_CSS * (1 + len(actors) // 4), strict=False):
        if skipped(entry["metrics"]):
            continue
        curve = entry["metrics"].get("curve") or []
        train = [(p["tokens"], p["loss"]) for p in curve if p.get("loss") is not None]
        held = [(p["tokens"], p["held_out_loss"]) for p in curve if p.get("held_out_loss") is not None]
        if train:
            lines.append(Line(name if not held else f"{name}, training", css, [_smooth(train)], faint=bool(held)))
        if held:
            lines.append(Line(name, css, [held], mark=len(held) <= 30))
        rows += [[name, number(p["tokens"]), number(p["loss"], 3), number(p.get("held_out_loss"), 3)] for p in _thin(curve, MOST_ROWS // 2)]
    if not lines:
        return None
    title = "Loss of the warm start"
    ends = "; ".join(f"{line.name} ends at {number(line.points[-1][1], 3)}" for line in lines)
    wide, narrow = (
        charts.line_chart(title, ends, lines, lambda v: number(v, 1), short, x_label="tokens trained on", width=w, height=h)
        for w, h in ((880, 290), (NARROW, 250))
    )
    note = "Nats a token. Thin: training loss, averaged over at most 160 stretches. Dots: held-out episodes. The table shows some of the points."
    return Figure(title, wide, ["Actor", "Tokens", "Training", "Held out"], rows, narrow, note)


def _smooth(points: list[tuple[float, float]], most: int = 160) -> list[tuple[float, float]]:
    size = max(1, math.ceil(len(points) / most))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _thin(rows: list, most: int) -> list:
    size = max(1, math.ceil(len(rows) / most))
    return rows[::-1][::size][::-1]


ONLINE: tuple[tuple[str, str, str, Callable[[float], str], bool], ...] = (
    ("success", "Success while learning", "share of the iteration's episodes solved", whole, False),
    ("forecast_nll", "Forecast loss", "of the coming actions, at points of own successes, nats a token", lambda v: number(v, 2), True),
    ("invalid_share", "Invalid actions", "share of the steps that the environment refused", percent, True),
    ("entropy", "Entropy", "of the sampled distribution, nats a token", lambda v: number(v, 2), True),
    ("kl", "Divergence from the round's start", "estimated KL, nats a token", lambda v: number(v, 4), True),
)


def online(report: dict) -> list[Figure]:
    """One figure a measure; the rounds stand side by side and are not joined, for each starts from a champion."""
    rounds = [one for one in report["rounds"] if one["round"] > 0 and not skipped(one["online"]) and one["online"].get("curve")]
    return [figure for measure in ONLINE if (figure := _online(rounds, *measure)) is not None]


def _online(rounds: list[dict], key: str, title: str, note: str, form: Callable[[float], str], from_zero: bool) -> Figure | None:
    pieces, bands, shown, rows, start = [], [], [], [], 0
    for one in rounds:
        curve = one["online"]["curve"]
        last = max(p["iteration"] for p in curve)
        piece = [(start + p["iteration"], p[key]) for p in curve if p.get(key) is not None]
        if piece:
            pieces.append(piece)
            bands.append((piece[0][0], piece[-1][0], round_name(one["round"])))
            shown += [(piece[0][0], str(curve[0]["iteration"])), (piece[-1][0], str(last))]
        rows += [[str(one["round"]), str(p["iteration"]), form(p[key]), number(p.get("episodes"))] for p in curve if p.get(key) is not None]
        start += last + max(1, last // 10)
    if not pieces:
        return None
    shown = sorted(dict(shown).items())
    desc = "; ".join(f"{band[2]} from {form(piece[0][1])} to {form(piece[-1][1])}" for band, piece in zip(bands, pieces, strict=True))
    line = Line(title, "c-new", pieces, mark=len(rows) <= 60)
    picture = charts.line_chart(
        title, desc, [line], form, str, x_label="iteration", from_zero=from_zero, bands=bands, x_ticks=shown
    )
    return Figure(title, picture, ["Round", "Iteration", title, "Episodes"], rows, None, capital(note) + ".")


def by_type(report: dict) -> Figure | None:
    """Success by task type on the test panel, warm start and champion, and the paired gain."""
    final = report["final"]
    if skipped(final) or not final.get("champion") or not final["champion"].get("by_stratum"):
        return None
    warm, champion = final["warm"].get("by_stratum") or {}, final["champion"]["by_stratum"]
    compared = (final.get("comparison") or {}).get("by_stratum") or {}
    kinds = sorted(champion, key=stratum)
    keys = [("champion", "c-new", False)] if final.get("same") else [("warm start", "c-warm", True), ("champion", "c-new", False)]
    success = Panel("success", whole, [_marks(keys, {"warm start": warm.get(k), "champion": champion[k]}) for k in kinds], share=1.5)
    gains = []
    for k in kinds:
        gain = (compared.get(k) or {}).get("gain")
        gains.append([Mark("gain", "c-gain", gain["mean"], gain["low"], gain["high"])] if gain else [])
    text = lambda mark: f"{signed(mark.value)} ({signed(mark.low)} to {signed(mark.high)})"
    gain_panel = Panel("paired gain, points", lambda v: signed(v, 0), gains, zero=True, share=1.4, span=text)
    panels = [success, gain_panel] if any(gains) and not final.get("same") else [success]
    rows = [_type_row(k, warm.get(k), champion[k], compared.get(k)) for k in kinds]
    title, desc = "Success by task type on the test panel", "; ".join(f"{r[0]}: warm start {r[2]}, champion {r[4]}" for r in rows)
    names = [f"{stratum(k)} ({champion[k]['n']})" for k in kinds]
    wide = charts.interval_chart(title, desc, names, panels, 880)
    narrow = charts.interval_chart(title, desc, names, [success], NARROW)
    head = ["Task type", "n", "Warm start", "interval", "Champion", "interval", "Paired gain", "interval"]
    return Figure(title, wide, head, rows, narrow, "In brackets: number of tasks. 95\u202f% intervals (Wilson).", keys)


def _marks(keys: list, values: dict[str, dict | None]) -> list[Mark]:
    found = []
    for name, css, hollow in keys:
        own = values[name]
        if own is not None:
            s = own["success"]
            found.append(Mark(name, css, s["mean"], s["low"], s["high"], hollow))
    return found


def _type_row(kind: str, warm: dict | None, champion: dict, compared: dict | None) -> list[str]:
    gain, before = (compared or {}).get("gain"), (warm or {}).get("success")
    return [
        stratum(kind), number(champion["n"]), percent(before["mean"]) if before else "–", between(before),
        percent(champion["success"]["mean"]), between(champion["success"]), signed(gain["mean"]) if gain else "–", between_signed(gain),
    ]  # fmt: skip

