"""What the built site loads: addresses in its HTML and its style sheets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADS = {"src", "srcset", "data", "poster"}
LINKS_THAT_LOAD = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "prefetch", "manifest"}
OUTSIDE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
STYLE = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])([^"')]+)""")


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.found += [given[key] for key in LOADS & given.keys()]
        self.found += STYLE.findall(given.get("style", ""))
        if tag == "link" and set(given.get("rel", "").split()) & LINKS_THAT_LOAD:
            self.found.append(given.get("href", ""))

    def handle_data(self, data: str) -> None:
        if self.rawdata and self.cdata_elem == "style":
            self.found += STYLE.findall(data)


def loads(page: Path) -> list[str]:
    """Addresses that a browser fetches by itself for a page or a style sheet."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".css":
        return STYLE.findall(text)
    parser = _Loads()
    parser.feed(text)
    return parser.found


def from_outside(folder: Path) -> Iterator[str]:
    """`PAGE: ADDRESS` of everything that comes from elsewhere."""
    for page in sorted([*folder.rglob("*.html"), *folder.rglob("*.css")]):
        yield from (f"{page.relative_to(folder)}: {address}" for address in loads(page) if OUTSIDE.match(address))
