"""Inline SVG charts: lines, dots with intervals, the ratchet itself, small bars.

Colours are CSS classes (`c-warm`, `c-new`, …), so one chart serves light and dark. Sizes are those a chart is shown at,
so its text keeps the page's size; a chart with a wide and a narrow form is drawn twice and CSS shows one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup, escape

from ratchet.page.words import clean

Format = Callable[[float], str]
Scale = Callable[[float], float]
CHAR = 6.7  # mean width of a character of chart text


@dataclass(frozen=True)
class Line:
    """One series: `pieces` are drawn unconnected (an online round each); `mark` draws dots, `faint` thins it."""

    name: str
    css: str
    pieces: list[list[tuple[float, float]]]
    mark: bool = False
    faint: bool = False

    @property
    def points(self) -> list[tuple[float, float]]:
        return [point for piece in self.pieces for point in piece]


@dataclass(frozen=True)
class Mark:
    """A value with its interval; `hollow` tells series apart where colours cannot be told apart."""

    name: str
    css: str
    value: float
    low: float
    high: float
    hollow: bool = False


@dataclass(frozen=True)
class Panel:
    """One column of an interval chart: `rows` holds the marks of each row."""

    title: str
    format: Format
    rows: list[list[Mark]]
    zero: bool = False
    share: float = 1.0  # of the width
    span: Callable[[Mark], str] | None = None  # text beside a mark; None: its value


@dataclass(frozen=True)
class Tooth:
    """One round of the run: the candidate's success on the confirm panel and whether it became champion."""

    name: str
    note: str
    tone: str
    value: float | None
    low: float | None = None
    high: float | None = None
    champion: float | None = None  # the champion's success after this round
    became: bool = False  # champion


@dataclass
class _Canvas:
    parts: list[str] = field(default_factory=list)

    def add(self, shape: str, **attributes: object) -> None:
        inner = " ".join(f'{key.rstrip("_").replace("_", "-")}="{escape(_attribute(value))}"' for key, value in attributes.items())
        self.parts.append(f"<{shape} {inner}/>")

    def text(self, x: float, y: float, text: str, css: str = "", anchor: str = "start") -> None:
        self.parts.append(f'<text x="{_n(x)}" y="{_n(y)}" class="{css}" text-anchor="{anchor}">{escape(clean(text))}</text>')

    def hint(self, shape: str, hint: str, **attributes: object) -> None:
        """A shape with a tooltip of its own."""
        self.add(shape, **attributes)
        self.parts[-1] = self.parts[-1][:-2] + f"><title>{escape(clean(hint))}</title></{shape}>"


def line_chart(
    title: str,
    desc: str,
    lines: Sequence[Line],
    y_format: Format,
    x_format: Format,
    *,
    x_label: str,
    width: int = 400,
    height: int = 230,
    from_zero: bool = False,
    bands: Sequence[tuple[float, float, str]] = (),
    x_ticks: Sequence[tuple[float, str]] | None = None,
) -> Markup:
    """Series over x, labelled at their ends. `bands` are named stretches of x (rounds)."""
    points = [point for line in lines for point in line.points]
    if not points:
        return Markup("")
    y_ticks = ticks(min(0.0, *_ys(points)) if from_zero else min(_ys(points)), max(_ys(points)), 4)
    named = len(lines) > 1
    left = 10 + CHAR * max(len(y_format(tick)) for tick in y_ticks)
    right = width - (14 + CHAR * max(len(line.name) for line in lines if not line.faint) if named else 12)
    top, bottom = (26 if bands else 10), height - 40
    low_x, high_x = min(p[0] for p in points), max(p[0] for p in points)
    x_of, y_of = _scale(low_x, high_x, left + 6, right - 6), _scale(y_ticks[0], y_ticks[-1], bottom, top)
    c = _Canvas()
    for tick in y_ticks:
        c.add("line", x1=left, x2=right, y1=y_of(tick), y2=y_of(tick), class_="grid")
        c.text(left - 6, y_of(tick) + 4, y_format(tick), "soft", "end")
    for start, stop, name in bands:
        c.text((x_of(start) + x_of(stop)) / 2, 14, name, "soft", "middle")
    for (_, before, _), (after, _, _) in pairwise(bands):
        middle = (x_of(before) + x_of(after)) / 2
        c.add("line", x1=middle, x2=middle, y1=4, y2=bottom, class_="rule")
    shown = x_ticks if x_ticks is not None else [(t, x_format(t)) for t in ticks(low_x, high_x, 4) if low_x <= t <= high_x]
    for at, text in shown:
        c.text(x_of(at), bottom + 17, text, "soft", "middle")
    c.text((left + right) / 2, height - 5, x_label, "soft", "middle")
    for line in lines:
        for piece in line.pieces:
            path = " ".join(f"{_n(x_of(x))},{_n(y_of(y))}" for x, y in piece)
            c.add("polyline", points=path, class_=f"series {line.css}" + (" faint" if line.faint else ""))
            for x, y in piece if line.mark else ():
                c.hint("circle", f"{line.name}: {y_format(y)}", cx=x_of(x), cy=y_of(y), r=3, class_=f"dot {line.css}")
    if named:
        labelled = [line for line in lines if not line.faint]
        ends = [y_of(line.points[-1][1]) for line in labelled]
        for line, y in zip(labelled, spread(ends, 14, top, bottom - 6), strict=True):
            c.text(right + 4, y + 4, line.name, f"label {line.css}")
    return _svg(title, desc, width, height, c)


def interval_chart(title: str, desc: str, names: Sequence[str], panels: Sequence[Panel], width: int = 880) -> Markup:
    """Rows of dots with intervals, one or more panels side by side; on narrow charts a row's name stands above it."""
    narrow = width < 600
    label_width = 0.0 if narrow else 12 + CHAR * max(map(len, names))
    per_row = max(len(marks) for panel in panels for marks in panel.rows)
    row_height = (28 if narrow else 12) + 18 * per_row
    top, height = 28, 28 + row_height * len(names) + 30
    c = _Canvas()
    for i, name in enumerate(names):
        y = top + row_height * i
        if i:
            c.add("line", x1=0, x2=width, y1=y, y2=y, class_="grid")
        c.text(0, y + 18 if narrow else y + row_height / 2 + 4, name, "strong")
    x, total = label_width, sum(panel.share for panel in panels)
    for panel in panels:
        room = (width - label_width) * panel.share / total
        _interval_panel(c, panel, x, x + room - (18 if panel is not panels[-1] else 0), top, row_height, narrow)
        x += room
    return _svg(title, desc, width, height, c)


def _interval_panel(c: _Canvas, panel: Panel, left: float, right: float, top: float, row_height: float, narrow: bool) -> None:
    marks = [mark for row in panel.rows for mark in row]
    label = panel.span or (lambda mark: panel.format(mark.value))
    widest = CHAR * max((len(label(mark)) for mark in marks), default=0)
    low, high = min((m.low for m in marks), default=0.0), max((m.high for m in marks), default=1.0)
    grid = ticks(min(low, 0.0) if panel.zero else low, max(high, 0.0) if panel.zero else high, 4)
    x_of = _scale(grid[0], grid[-1], left + 16, right - widest - 14)
    bottom = top + row_height * len(panel.rows)
    c.text(x_of(grid[0]) - 8, 13, panel.title, "soft")
    for tick in grid:
        c.add("line", x1=x_of(tick), x2=x_of(tick), y1=top, y2=bottom, class_="rule" if panel.zero and tick == 0 else "grid")
        c.text(x_of(tick), bottom + 16, panel.format(tick), "soft", "middle")
    for i, row in enumerate(panel.rows):
        first = top + row_height * i + (25 if narrow else 6) + 9
        first += 9 * (max(len(r) for r in panel.rows) - len(row))
        for j, mark in enumerate(row):
            y = first + 18 * j
            _whisker(c, mark, x_of(mark.low), x_of(mark.high), y)
            hint = f"{mark.name}: {panel.format(mark.value)}, interval {panel.format(mark.low)} to {panel.format(mark.high)}"
            c.hint("circle", hint, cx=x_of(mark.value), cy=y, r=5, class_=f"dot {mark.css}" + (" hollow" if mark.hollow else ""))
            c.text(x_of(mark.high) + 8 if panel.span is None else right - widest - 4, y + 4, label(mark), f"label {mark.css}")


def _whisker(c: _Canvas, mark: Mark, x1: float, x2: float, y: float) -> None:
    c.add("line", x1=x1, x2=x2, y1=y, y2=y, class_=f"whisker {mark.css}")
    for x in (x1, x2):
        c.add("line", x1=x, x2=x, y1=y - 4, y2=y + 4, class_=f"whisker {mark.css}")


def ratchet_chart(title: str, desc: str, teeth: Sequence[Tooth], y_format: Format, width: int = 880, height: int = 290) -> Markup:
    """Rounds from left to right: candidates as dots with intervals, the champion as a line that moves only when one is promoted."""
    values = [v for tooth in teeth for v in (tooth.value, tooth.low, tooth.high, tooth.champion) if v is not None]
    if not values:
        return Markup("")
    grid = ticks(min(values), max(values), 4)
    left, right, top, bottom = 14 + CHAR * max(len(y_format(t)) for t in grid), width - 6, 16, height - 48
    step = (right - left) / len(teeth)
    y_of = _scale(grid[0], grid[-1], bottom, top)
    c = _Canvas()
    for tick in grid:
        c.add("line", x1=left, x2=right, y1=y_of(tick), y2=y_of(tick), class_="grid")
        c.text(left - 6, y_of(tick) + 4, y_format(tick), "soft", "end")
    path, level = [], None
    for i, tooth in enumerate(teeth):
        x = left + step * (i + 0.5)
        if tooth.champion is not None:
            if level is not None:
                path.append((x, y_of(level)))
            path.append((x, y_of(tooth.champion)))
            level = tooth.champion
    if level is not None:
        path.append((right, y_of(level)))
        c.add("polyline", points=" ".join(f"{_n(x)},{_n(y)}" for x, y in path), class_="champion")
        if step > 160:  # else the note below the chart says it
            c.text(right, y_of(level) - 10, "champion", "label soft", "end")
    for i, tooth in enumerate(teeth):
        _tooth(c, tooth, left + step * (i + 0.5), y_of, y_format, (top + bottom) / 2, bottom)
    return _svg(title, desc, width, height, c)


def _tooth(c: _Canvas, tooth: Tooth, x: float, y_of: Scale, y_format: Format, middle: float, bottom: float) -> None:
    c.text(x, bottom + 20, tooth.name, "strong", "middle")
    c.text(x, bottom + 37, tooth.note, f"label t-{tooth.tone}", "middle")
    if tooth.value is None:
        if tooth.tone == "bad":
            c.add("path", d=f"M{_n(x - 7)} {_n(middle - 7)}l14 14m0 -14l-14 14", class_=f"cross t-{tooth.tone}")
        return
    css = "c-new" if tooth.became else "c-old"
    hint = f"{tooth.name}: {y_format(tooth.value)}"
    if tooth.low is not None and tooth.high is not None:
        c.add("line", x1=x, x2=x, y1=y_of(tooth.low), y2=y_of(tooth.high), class_=f"whisker {css}")
        for value in (tooth.low, tooth.high):
            c.add("line", x1=x - 5, x2=x + 5, y1=y_of(value), y2=y_of(value), class_=f"whisker {css}")
        hint += f", interval {y_format(tooth.low)} to {y_format(tooth.high)}"
    c.hint("circle", hint, cx=x, cy=y_of(tooth.value), r=6, class_=f"dot {css}" + ("" if tooth.became else " hollow"))
    y = y_of(tooth.value) + (-10 if tooth.became else 18)
    c.text(x - 11, y, y_format(tooth.value), f"label strong {css}", "end")


def bar(share: float | None, css: str = "c-new", width: int = 72) -> Markup:
    """A small bar for a table cell; its number stands beside it, so readers skip it."""
    filled = max(0.0, min(1.0, share or 0.0)) * width
    return Markup(
        '<svg class="bar" width="%d" height="8" viewBox="0 0 %d 8" aria-hidden="true"><rect class="track" width="%d" height="8" rx="2"/>'
        '<rect class="fill %s" width="%s" height="8" rx="2"/></svg>'
    ) % (width, width, width, css, _n(filled))


def ticks(low: float, high: float, n: int) -> list[float]:
    """Round numbers around [low, high], about `n` steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        pad = abs(low) * 0.1 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / n
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `wanted`, in the same order, at least `gap` apart."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    last = low - gap
    for i in order:
        last = placed[i] = max(wanted[i], last + gap)
    limit = high + gap
    for i in reversed(order):
        limit = placed[i] = min(placed[i], limit - gap)
    return placed


def _ys(points: Sequence[tuple[float, float]]) -> list[float]:
    return [y for _, y in points]


def _scale(low: float, high: float, start: float, stop: float) -> Scale:
    extent = (high - low) or 1.0
    return lambda value: start + (value - low) / extent * (stop - start)





def _n(value: float) -> str:
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def _attribute(value: object) -> str:
    return _n(float(value)) if isinstance(value, (int, float)) else str(value)


def _svg(title: str, desc: str, width: int, height: float, canvas: _Canvas) -> Markup:
    key = hashlib.sha256(f"{title}|{desc}|{width}".encode("utf-8", "replace")).hexdigest()[:8]
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width} {_n(height)}" width="{width}" height="{_n(height)}" role="img" '
        f'aria-labelledby="t{key} d{key}"><title id="t{key}">{escape(clean(title))}</title>'
        f'<desc id="d{key}">{escape(clean(desc))}</desc>{"".join(canvas.parts)}</svg>'
    )
