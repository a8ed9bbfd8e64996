"""Small pages of one file, which work offline and hold no clock: text is escaped, styles are inside, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

MAX_TEXT = 300  # characters of a name that data made up
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f5a; --warn: #b07400; --bad: #c0392b; --one: #4c78a8; --two: #e8833a; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } .scroll { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { overflow-wrap: anywhere; } .ok { color: var(--good); } .warn { color: var(--warn); font-weight: 600; }
.fail { color: var(--bad); font-weight: 600; } .quiet { opacity: .7; }
.bars { display: grid; grid-template-columns: minmax(5rem, 12rem) 1fr; gap: .15rem .6rem; font-size: .85rem; align-items: center; }
.bars div.pair { display: grid; gap: 1px; } .bars span.bar { display: block; height: .45rem; min-width: 1px; }
.one { background: var(--one); } .two { background: var(--two); } .key { display: inline-block; width: .8rem; height: .8rem; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document; `title` is text, `parts` are HTML."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{text(title)}</title>'
    return f"<!doctype html><html lang=\"en\"><head>{head}<style>{_STYLE}</style></head><body><h1>{text(title)}</h1>{''.join(parts)}</body></html>\n"


def text(value: Any) -> str:
    """Anything as harmless text: escaped, without control characters, and cut where it is long."""
    plain = "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in str(value))
    return escape(plain if len(plain) <= MAX_TEXT else f"{plain[:MAX_TEXT]} …", quote=True)


def number(value: Any) -> str:
    """A number with the digits that it needs; nothing as a dash."""
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else text(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """A table of HTML cells; columns `numbers` are aligned to the right."""
    right = set(numbers)
    cells = "".join(f"<th>{text(one)}</th>" for one in head)
    body = "".join(
        "<tr>" + "".join(f'<td class="number">{one}</td>' if i in right else f"<td>{one}</td>" for i, one in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def bars(rows: Iterable[tuple[str, float, float]]) -> str:
    """Pairs of bars: (name, share of the one, share of the other), shares of the largest of all."""
    rows = list(rows)
    most = max((max(one, two) for _, one, two in rows), default=0.0) or 1.0
    cells = [
        f'<span>{text(name)}</span><div class="pair" title="{number(one)} and {number(two)}">'
        f'<span class="bar one" style="width:{100 * one / most:.2f}%"></span>'
        f'<span class="bar two" style="width:{100 * two / most:.2f}%"></span></div>'
        for name, one, two in rows
    ]
    return f'<div class="bars">{"".join(cells)}</div>'
