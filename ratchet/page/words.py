"""Numbers, names and foreign text as the page shows them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

THIN = "\u202f"
MINUS = "\u2212"
NONE = "\u2013"

STRATA = {
    "pick_and_place_simple": "Pick and place",
    "look_at_obj_in_light": "Examine in light",
    "pick_clean_then_place_in_recep": "Clean and place",
    "pick_heat_then_place_in_recep": "Heat and place",
    "pick_cool_then_place_in_recep": "Cool and place",
    "pick_two_obj_and_place": "Pick two and place",
}

EVENTS = {
    "model.promoted": ("promoted", "good"),
    "model.kept": ("champion stays", "calm"),
    "model.regression": ("regression, champion stays", "warn"),
    "model.baseline": ("baseline", "calm"),
    "run.stopped": ("stopped", "bad"),
}

# Characters that a terminal or a browser would obey rather than show: C0 without tab and newline, DEL, C1, zero-width
# and direction controls, line and paragraph separators, lone surrogates, non-characters.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]"
)


def clean(text: str) -> str:
    """`text` with every character that acts instead of showing replaced by a picture or by its name."""
    return _UNSAFE.sub(lambda match: _visible(match.group()), text)


def _visible(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"\u27e8U+{code:04X}\u27e9"


def number(value: Any, digits: int = 1) -> str:
    """`1,234.5`; a dash for nothing. Integers stay whole."""
    if value is None or isinstance(value, bool):
        return NONE
    if isinstance(value, int):
        return f"{value:,}".replace("-", MINUS)
    text = f"{value:,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def tiny(value: Any) -> str:
    """`1.2e-06`; a dash for nothing."""
    return NONE if value is None else f"{value:.1e}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share as `55.1 %`."""
    return NONE if value is None else f"{number(value * 100.0, digits)}{THIN}%"


def level(value: float | None) -> str:
    """A confidence level as `95 %` or `97.5 %`; one of alpha spending may need more digits."""
    return "" if value is None else f"{value * 100:.2f}".rstrip("0").rstrip(".") + f"{THIN}%"


def signed(value: float | None, digits: int = 1) -> str:
    """A difference of shares in percentage points, `+7.2`, without its unit."""
    if value is None:
        return NONE
    text = number(value * 100.0, digits)
    return text if text.startswith(MINUS) or float(text.replace(",", "")) == 0 else f"+{text}"


def between(interval: dict | None) -> str:
    """The interval of a share, `50.8 to 59.4`."""
    if not interval or interval.get("low") is None or interval.get("high") is None:
        return NONE
    return f"{number(interval['low'] * 100.0)} to {number(interval['high'] * 100.0)}"


def between_signed(interval: dict | None) -> str:
    """The interval of a difference, `+4.1 to +10.3`."""
    if not interval or interval.get("low") is None or interval.get("high") is None:
        return NONE
    return f"{signed(interval['low'])} to {signed(interval['high'])}"


def short(value: float | None) -> str:
    """A count in few characters: `3.0 M`, `16 k`, `512`."""
    if value is None:
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.2f}".rstrip("0").rstrip(".") + f"{THIN}{unit}" if scaled < 10 else f"{scaled:.0f}{THIN}{unit}"
    return f"{value:g}"


def stratum(name: str | None) -> str:
    """A task type's plain name."""
    name = name or ""
    return STRATA.get(name, name.replace("_", " ").replace("-", " ").strip().capitalize() or NONE)


def round_name(k: Any) -> str:
    return "warm start" if str(k) == "0" else f"round {k}"


def capital(text: str | None) -> str:
    text = text or ""
    return text[:1].upper() + text[1:]


def when(text: str | None) -> str:
    """A time of a card, `2026-11-30 06:25` in UTC; what is none stays as it is."""
    try:
        return datetime.fromisoformat(text or "").astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return text or NONE


def duration(seconds: float | None) -> str:
    """`48 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds is None:
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{whole}{THIN}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}{THIN}min {rest:02d}{THIN}s" if minutes < 60 else f"{minutes // 60}{THIN}h {minutes % 60:02d}{THIN}min"


def place(stage: str | None) -> str:
    """Where in a run something was made: `harvest@1` as `harvest, round 1`."""
    name, _, k = (stage or "").partition("@")
    return f"{name}, {round_name(k)}" if k else name or NONE


def observed(value: Any) -> str:
    """What a check saw or its limit: numbers with the digits they need, anything else as it is."""
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", MINUS)
    return number(value) if isinstance(value, int) and not isinstance(value, bool) else NONE if value is None else str(value)


def skipped(part: dict | None) -> str | None:
    """Why a part of the run has nothing to show, or None where it has."""
    if part is None:
        return "not there: its stage has not run"
    reason = part.get("skipped")
    return f"skipped: {reason}" if reason else None
