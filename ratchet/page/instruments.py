"""What the page says of meter, critic and the offline update: whether they could be trusted, and what they did with the credit."""

from __future__ import annotations

from typing import Any

from ratchet.page import charts, figures
from ratchet.page.charts import Line
from ratchet.page.figures import Figure
from ratchet.page.words import number, percent, round_name, skipped

CREDIT = (
    ("credit_weight_max", "Largest weight", lambda value: number(value, 2)),
    ("credit_capped_share", "At the cap", percent),
    ("credit_beta", "Meter's part of the share", percent),
    ("meter_completable_share", "Held completable", percent),
    ("meter_cost", "Mean cost", lambda value: number(value, 0)),
    ("meter_silent_share", "No share", percent),
    ("c_touched_share", "Successes held lost", percent),
    ("meter_unparsable_share", "Unreadable", percent),
)
OFFLINE = (("ess", "Effective share", lambda value: number(value, 2)), ("kl", "KL", lambda value: number(value, 4)), ("pairs", "Pairs", number))


def instruments(report: dict[str, Any]) -> dict[str, Any] | None:
    """What there is to say, or None where a run has neither meter, critic, buffer nor offline update."""
    rounds = [one for one in report["rounds"] if one["round"] > 0]
    parts = [one.get(name) for one in rounds for name in ("meter", "critic", "buffer", "offline")]
    if all(skipped(part) for part in parts):
        return None
    return {
        "meters": [_meter(one) for one in rounds if not skipped(one.get("meter"))],
        "critics": [_critic(one) for one in rounds if not skipped(one.get("critic"))],
        "offline": [_offline(one) for one in rounds if not skipped(one.get("offline"))],
        "buffers": [one["buffer"] | {"round": one["round"]} for one in rounds if not skipped(one.get("buffer"))],
        "off": off(rounds),
        "calibration": calibration(rounds),
        "td_error": td_error(rounds),
        "credit": credit(rounds),
    }


def off(rounds: list[dict[str, Any]]) -> list[str]:
    """What was left out and why, a sentence for each part and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, called in (("buffer", "Buffer"), ("meter", "Meter"), ("critic", "Critic"), ("offline", "Offline update")):
        for one in rounds:
            if one.get(name) and (reason := skipped(one[name])):
                found.setdefault((called, reason), []).append(str(one["round"]))
    said = []
    for (called, reason), of in found.items():
        which = f"round {of[0]}" if len(of) == 1 else f"rounds {', '.join(of[:-1])} and {of[-1]}"
        said.append(f"{called} of {which}: {reason}.")
    return said


def calibration(rounds: list[dict[str, Any]]) -> Figure | None:
    """How often what the meter gave a probability was so, a line a round."""
    lines, rows = [], []
    for one in rounds:
        meter = one.get("meter") or {}
        found = (meter.get("calibration") or {}).get("reliability") or []
        points = [(part["said"], part["was"]) for part in found if part.get("n")]
        if points:
            lines.append(Line(round_name(one["round"]), figures.ACTOR_CSS[len(lines) % len(figures.ACTOR_CSS)], [points], mark=True))
            rows += [[str(one["round"]), percent(part["said"], 0), percent(part["was"], 0), number(part["n"])] for part in found]
    if not lines:
        return None
    title = "Calibration of the meter"
    errors = [(one["round"], ((one.get("meter") or {}).get("calibration") or {}).get("ece")) for one in rounds]
    desc = "; ".join(f"{round_name(k)}: expected calibration error {number(error, 3)}" for k, error in errors if error is not None) or title
    even = Line("calibrated", "c-old", [[(0.0, 0.0), (1.0, 1.0)]], faint=True)
    wide, narrow = (
        charts.line_chart(title, desc, [even, *lines], figures.whole, figures.whole, x_label="said to be completable", width=width, height=270)
        for width in (400, figures.NARROW)
    )
    note = "How many states of held-out episodes did end well, by the probability that the meter gave them. Calibrated is the thin line."
    return Figure(title, wide, ["Round", "Said", "Was", "States"], rows, narrow, note)


def td_error(rounds: list[dict[str, Any]]) -> Figure | None:
    """Mean squared TD error by epoch, on the episodes that a critic was fitted on and on held-out ones."""
    lines, rows = [], []
    for place, one in enumerate(rounds):
        curve = ((one.get("critic") or {}).get("fit") or {}).get("curve") or []
        css = figures.ACTOR_CSS[place % len(figures.ACTOR_CSS)]
        held = [(float(p["epoch"]), p["held_out_td_error"]) for p in curve if p.get("held_out_td_error") is not None]
        own = [(float(p["epoch"]), p["td_error"]) for p in curve if p.get("td_error") is not None]
        lines += [Line(f"{round_name(one['round'])}, fitted", css, [own], faint=True)] if own else []
        lines += [Line(round_name(one["round"]), css, [held], mark=True)] if held else []
        shown = (("td_error", 4), ("held_out_td_error", 4), ("calibration", 3), ("rank_correlation", 2))
        rows += [[str(one["round"]), str(p["epoch"]), *(number(p.get(key), digits) for key, digits in shown)] for p in curve]
    if not lines:
        return None
    title = "TD error of the critic"
    desc = "; ".join(f"{line.name} ends at {number(line.points[-1][1], 4)}" for line in lines)
    picture = charts.line_chart(title, desc, lines, lambda v: number(v, 3), lambda v: number(v, 0), x_label="epoch", height=270, from_zero=True)
    note = "Mean squared, on tasks that it was not fitted on; thin: on those that it was."
    return Figure(title, picture, ["Round", "Epoch", "Fitted", "Held out", "Calibration", "Rank correlation"], rows, None, note)


def credit(rounds: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Means over a round's iterations of what the shares of credit came to: `{"head", "rows"}`."""
    rows = []
    for one in rounds:
        curve = [] if skipped(one.get("online")) else one["online"].get("curve") or []
        means = [_mean([p[key] for p in curve if p.get(key) is not None]) for key, _, _ in CREDIT]
        if any(mean is not None for mean in means):
            rows.append([str(one["round"]), *(form(mean) for (_, _, form), mean in zip(CREDIT, means, strict=True))])
    return {"head": ["Round", *(title for _, title, _ in CREDIT)], "rows": rows} if rows else None


def _meter(one: dict[str, Any]) -> dict[str, Any]:
    gate = one["meter"].get("gate") or {}
    verdict = gate.get("gate") or {}
    return {"round": one["round"], "action": gate.get("action"), "reason": gate.get("reason"), "passed": verdict.get("passed"), "tests": verdict.get("tests") or [],
            "enforced": verdict.get("enforced", True), "version": gate.get("version"), "limit": gate.get("limit")}  # fmt: skip


def _critic(one: dict[str, Any]) -> dict[str, Any]:
    gate, fit = one["critic"].get("gate") or {}, one["critic"].get("fit") or {}
    said = {key: gate.get(key) for key in ("passed", "reason", "rank_correlation", "limit")}
    return {"round": one["round"], **said, **{key: fit.get(key) for key in ("fitted", "held_out")}}


def _offline(one: dict[str, Any]) -> dict[str, Any]:
    told = one["offline"]
    said = [f"{title.lower() if title != 'KL' else title} {form(told[key])}" for key, title, form in OFFLINE if told.get(key) is not None]
    return {"round": one["round"], "method": told.get("method"), "version": told.get("version"), "said": ", ".join(said)}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
