"""Prefect's own UI in a headless Chromium: forms, buttons, pictures. Pictures go to RATCHET_PICTURES where that is set."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.monitoring.serve.conftest import PATIENCE_S, until
from tests.page.browser import Tab

T = TypeVar("T")
AGAIN_S = 8.0  # a form that has taken a click shows something else well before
FIELD = """[...document.querySelectorAll('.schema-form-property')]
.find(e => e.querySelector('.schema-form-property__label').innerText.replace('(Optional)', '').trim() === '{name}')"""
# Vue listens to events, and looks at the value that the element itself was given
FILL = """(() => {{ const f = {field}, e = f && f.querySelector('{tag}'); if (!e) return null;
Object.getOwnPropertyDescriptor(Object.getPrototypeOf(e), 'value').set.call(e, '{value}');
e.dispatchEvent(new Event('input', {{bubbles: true}})); e.dispatchEvent(new Event('change', {{bubbles: true}})); return e.value }})()"""
SWITCH = """(() => {{ const f = {field}, e = f && f.querySelector('[role=switch]'); if (!e) return null;
if (e.getAttribute('aria-checked') !== 'true') e.click(); return e.getAttribute('aria-checked') }})()"""
CLICK = """(() => {{ const e = [...document.querySelectorAll('button, a, .p-tab')].find(e => e.innerText.trim() === '{label}' && !e.disabled);
if (e) e.click(); return !!e }})()"""


def visit(page: Tab, url: str, width: int = 1280, height: int = 1100) -> None:
    for domain in ("Page", "Runtime"):
        page.call(f"{domain}.enable")
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    page.call("Page.navigate", url=url)


def text(page: Tab) -> str:
    return page.evaluate("document.body ? document.body.innerText : ''") or ""


def click(page: Tab, label: str) -> None:
    until(lambda: page.evaluate(CLICK.format(label=label)), f"a button {label}")


def submit(page: Tab, fields: dict[str, tuple[str, str]], came: Callable[[], T]) -> T:
    """Fills in `fields` (name: tag, value) and clicks Submit until `came` gives something; a form that is not ready yet takes neither
    values nor clicks, and says nothing. Only while the form is still shown and nothing came."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        fill(page, fields)
        page.evaluate(CLICK.format(label="Submit"))
        again = time.monotonic() + AGAIN_S
        while time.monotonic() < again or not page.evaluate(f"!!({FIELD.format(name=next(iter(fields)))})"):
            if found := came():
                return found
            time.sleep(0.2)
            assert time.monotonic() < end, f"nothing came of the form; the page says: {text(page)[-600:]}"
    raise AssertionError(f"nothing came of the form; the page says: {text(page)[-600:]}")


def fill(page: Tab, fields: dict[str, tuple[str, str]]) -> None:
    """Gives fields their values; the tag `switch` with any value is one that is switched on."""
    for name, (tag, value) in fields.items():
        field = FIELD.format(name=name)
        wanted = SWITCH.format(field=field) if tag == "switch" else FILL.format(field=field, tag=tag, value=value)
        until(lambda: page.evaluate(wanted) == ("true" if tag == "switch" else value), f"the field {name}")


def keep(page: Tab, name: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("RATCHET_PICTURES") or tmp_path)
    page.picture(folder / f"{name}.png", clip=(0, page.evaluate("innerHeight")))
    assert (folder / f"{name}.png").stat().st_size > 10_000
