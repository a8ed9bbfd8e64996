"""Commands as pages show them: lines of their blocks of shell, and `ratchet …` in running text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PAGES = [CHECKOUT / "README.md", CHECKOUT / "benchmarks" / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:ratchet|make|dvc|python -m) [^`]+)`")
ENDS = {"&&", "||", "|", ";", "&", ">"}


def commands(page: Path) -> Iterator[list[str]]:
    """Each command of a page as its words, comments and variables set before it left out."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += [one.replace("…", "") for one in INLINE.findall(FENCED.sub("", text)) if not one.endswith(" …")]
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;>")
        lexer.whitespace_split, words = True, []
        for word in [*lexer, ";"]:
            if word in ENDS:
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def of(program: str) -> list[tuple[str, tuple[str, ...]]]:
    """(page, words behind the program) of every such command of every page."""
    start = program.split()
    shown = ((page.relative_to(CHECKOUT).as_posix(), words) for page in PAGES for words in commands(page))
    return list(dict.fromkeys((page, tuple(words[len(start) :])) for page, words in shown if words[: len(start)] == start))
