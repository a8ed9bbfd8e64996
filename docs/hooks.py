"""What mkdocs does besides: notebooks become pages, and links to files outside docs/ lead to pages that show them.

So one link works in the checkout, on a git server and in the site, which needs nothing but itself.
"""

from __future__ import annotations

import ast
import base64
import json
import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s#]*)(?=[)#])")
NOTEBOOK = re.compile(r"(\]\([^):\s]+)\.ipynb\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".md": "markdown", ".toml": "toml", ".cff": "yaml", ".j2": "jinja"}
PAGES = {"README.md": "index.md"}
"""Files of the checkout that the site tells in its own way."""

log = logging.getLogger("mkdocs.hooks")  # a warning here fails `mkdocs build --strict`


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each notebook, and one for each file or folder of the checkout that a page links to."""
    for file in [one for one in files if one.src_uri.endswith(".ipynb")]:
        _notebook(file, files, config)
    shown: set[str] = set()
    waiting = [(path, page.src_uri) for page in files.documentation_pages() for path in _outside(page.src_uri, page.content_string)]
    while waiting:
        path, linked_from = waiting.pop()
        if path in shown or path in PAGES:
            continue
        shown.add(path)
        source = _root(config) / path
        if path.startswith("..") or not source.exists():
            log.warning(f"{linked_from} links to {path}, which is not in the checkout")
            continue
        files.append(File.generated(config, _page_of(path, source), content=_listing(path, source) if source.is_dir() else _source(path, source)))
        if source.is_dir():
            waiting.extend((f"{path}/{one.name}", linked_from) for one in _shown_in(source))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links to notebooks and to what lies outside docs/ into links to the pages made for them."""
    here = page.file.src_uri

    def lead(path: str) -> str:
        target = PAGES.get(path) or _page_of(path, _root(config) / path)
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return markdown if here.startswith("source/") else NOTEBOOK.sub(r"\1.md)", _relink(here, markdown, lead))


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def _outside(here: str, markdown: str) -> list[str]:
    """Paths in the checkout of what a page links to outside docs/."""
    found: list[str] = []
    _relink(here, markdown, lambda path: found.append(path) or path)
    return found


def _relink(here: str, markdown: str, change: Callable[[str], str]) -> str:
    def one(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(here), match[2]))
        return match[0] if path == "docs" or path.startswith("docs/") else match[1] + change(path)

    return LINK.sub(one, markdown)


def _page_of(path: str, source: Path) -> str:
    return f"source/{path}/index.md" if source.is_dir() else f"source/{path}.md"


def _shown_in(folder: Path) -> list[Path]:
    """What a reader may want to see of a folder: packages, and files of a known kind."""
    return sorted(one for one in folder.iterdir() if (one / "__init__.py").is_file() or (one.suffix in LANGUAGES and one.name != "__init__.py"))


def _source(path: str, source: Path) -> str:
    text = source.read_text(encoding="utf-8")
    fence = "`" * (max((len(run) for run in re.findall(r"`{3,}", text)), default=2) + 1)
    return f"# {path}\n\n{fence}{LANGUAGES.get(source.suffix, 'text')}\n{text}{fence}\n"


def _listing(path: str, folder: Path) -> str:
    lines = [f"# {path}/", "", "| file | what it is |", "|---|---|"]
    lines += [f"| [`{one.name}`]({_page_of(one.name, one).removeprefix('source/')}) | {_summary(one)} |" for one in _shown_in(folder)]
    return "\n".join(lines) + "\n"


def _summary(source: Path) -> str:
    """The first paragraph of a module's or package's docstring, or the first line of another file."""
    source = source / "__init__.py" if source.is_dir() else source
    text = source.read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text)) or "" if source.suffix == ".py" else text.partition("\n")[0].lstrip("#{ ").strip()
    return said.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _notebook(file: File, files: Files, config: MkDocsConfig) -> None:
    """Adds the page of a notebook with its outputs, and their pictures."""
    stem, parts = file.src_uri.removesuffix(".ipynb"), []
    pictures = 0
    for cell in json.loads(file.content_string)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                name = f"{stem}-{pictures}.png"
                files.append(File.generated(config, name, content=base64.b64decode(data["image/png"])))
                parts.append(f"![Output {pictures}]({posixpath.basename(name)})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                parts.append(f"```text\n{text}\n```")
    files.append(File.generated(config, f"{stem}.md", content="\n\n".join(parts) + "\n"))
