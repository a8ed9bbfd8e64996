"""What meter and critic said of an episode's steps, as curves that run down beside its text.

A turn's height is its text's. So each turn draws its own stretch of every curve, from half way to the turn before to half way to the
one after; stretched to the turn's height, the stretches meet. Dots and numbers lie in a second drawing that is never stretched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ratchet.page import charts
from ratchet.page.charts import Line
from ratchet.page.words import number

LANE = 92  # pixels a curve is wide
PAD = 12
LABELS = {
    "cost": ("Meter cost", "tokens still to go, as the meter estimates it before the step", "c-warm", 0),
    "value": ("Value", "of the state before the step, as the critic estimates it", "c-new", 2),
    "advantage": ("Advantage", "of the step over what the state was worth", "c-third", 2),
    "weight": ("Weight", "how much of the outcome the step is given; 1 is an even share", "c-fourth", 2),
    "fit_weight": ("Fit weight", "how much the step counted when the critic was fitted", "c-fourth", 2),
}
NEUTRAL = {"advantage": 0.0, "weight": 1.0}  # where a thin line stands: nothing gained, an even share


@dataclass(frozen=True)
class Lane:
    """A curve with its place: `low` and `high` are the ends of its scale."""

    name: str
    title: str
    note: str
    css: str
    digits: int
    values: Sequence[float | None]
    low: float
    high: float

    def x(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return PAD + (value - self.low) / span * (LANE - 2 * PAD)

    @property
    def neutral(self) -> float | None:
        """Where its thin line stands, in pixels."""
        at = NEUTRAL.get(self.name)
        return self.x(at) if at is not None and self.low <= at <= self.high else None


def lanes(curves: dict[str, list[float | None]]) -> list[Lane]:
    """The curves that there are, in a fixed order."""
    found = []
    for name, (title, note, css, digits) in LABELS.items():
        known = [value for value in curves.get(name, []) if value is not None]
        if known:
            neutral = [NEUTRAL[name]] if name in NEUTRAL else []
            found.append(Lane(name, title, note, css, digits, curves[name], min(*known, *neutral, known[0]), max(*known, *neutral, known[0])))
    return found


def stretch(shown: Sequence[Lane], t: int) -> Markup:
    """A turn's stretch of all curves: to be drawn over the whole height of its row."""
    parts = []
    for i, lane in enumerate(shown):
        left = i * LANE
        if lane.neutral is not None:
            parts.append(f'<path class="rule" d="M{left + lane.neutral:.1f} 0V100"/>')
        here = _at(lane, t)
        if here is None:
            continue
        for neighbour, y in ((_at(lane, t - 1), 0), (_at(lane, t + 1), 100)):
            if neighbour is not None:
                parts.append(f'<path class="series {lane.css}" d="M{left + (here + neighbour) / 2:.1f} {y}L{left + here:.1f} 50"/>')
    width = LANE * len(shown)
    return Markup(f'<svg class="stretch" viewBox="0 0 {width} 100" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>')


def dots(shown: Sequence[Lane], t: int) -> Markup:
    """A turn's dots with their numbers, never stretched."""
    parts = []
    for i, lane in enumerate(shown):
        here = _at(lane, t)
        if here is None:
            continue
        text = said(lane, t)
        right = here < LANE / 2
        x = i * LANE + here
        parts.append(f'<circle class="dot {lane.css}" cx="{x:.1f}" cy="12" r="3.5"/>')
        parts.append(f'<text class="label" x="{x + (8 if right else -8):.1f}" y="16" text-anchor="{"start" if right else "end"}">{escape(text)}</text>')
    width = LANE * len(shown)
    return Markup(f'<svg class="dots" viewBox="0 0 {width} 24" width="{width}" height="24" aria-hidden="true">{"".join(parts)}</svg>')


def said(lane: Lane, t: int) -> str:
    """A step's number in words."""
    value = lane.values[t] if 0 <= t < len(lane.values) else None
    text = number(value, lane.digits)
    return f"+{text}" if lane.name == "advantage" and value is not None and value > 0 else text


def small_charts(shown: Sequence[Lane]) -> list[Markup]:
    """Each curve over the steps, for screens too narrow for lanes."""
    made = []
    for lane in shown:
        pieces: list[list[tuple[float, float]]] = [[]]
        for t, value in enumerate(lane.values):
            if value is None:
                pieces.append([])
            else:
                pieces[-1].append((float(t), value))
        line = Line(lane.title, lane.css, [piece for piece in pieces if piece], mark=len(lane.values) <= 40)
        form = lambda value, digits=lane.digits: number(value, digits)
        made.append(charts.line_chart(lane.title, lane.note, [line], form, lambda t: number(t, 0), x_label="step", width=340, height=150))
    return made


def _at(lane: Lane, t: int) -> float | None:
    """Where in its lane the curve is at step t."""
    value = lane.values[t] if 0 <= t < len(lane.values) else None
    return None if value is None else lane.x(value)
