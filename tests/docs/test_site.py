"""The site of docs/: it builds without a warning and without a network, and needs nothing but itself to be read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.site import from_outside, loads
from tests.page import browser

pytest.importorskip("mkdocs", reason="the site needs the extra docs: pip install 'ratchet-agents[docs]'")
CHECKOUT = Path(__file__).parents[2]
NO_NETWORK = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "HTTP", "HTTPS", "all", "ALL")}


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env={**os.environ, **NO_NETWORK, "NO_MKDOCS_2_WARNING": "1"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = build(CHECKOUT, folder)
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_every_page_of_docs_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    navigation = (site / "index.html").read_text(encoding="utf-8")
    pages = [page.relative_to(CHECKOUT / "docs").with_suffix(".html") for page in (CHECKOUT / "docs").rglob("*") if page.suffix in (".md", ".ipynb")]
    assert len(pages) > 15
    for page in pages:
        assert (site / page).is_file(), page
        assert f'href="{page}"' in navigation, page


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    assert loads(site / "index.html"), "the page loads no style sheet: the parser saw nothing"
    assert list(from_outside(site)) == []


def test_what_comes_from_elsewhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="https://x/a.css"><script src="//x/b.js"></script><img src="c.png">'
        '<a href="https://x/">a link loads nothing</a><style>@import "https://x/d.css"; p { background: url(e.png) }</style>'
    )
    (tmp_path / "a.css").write_text("@font-face { src: url('https://x/f.woff2') } b { background: url(g.png) }")
    assert list(from_outside(tmp_path)) == ["a.css: https://x/f.woff2", "a.html: https://x/a.css", "a.html: //x/b.js", "a.html: https://x/d.css"]


@pytest.mark.slow
def test_links_to_code_lead_to_pages_that_show_it(site: Path) -> None:
    room = (site / "rooms" / "ratchet.html").read_text(encoding="utf-8")
    assert 'href="../source/ratchet/losses/index.html"' in room
    assert (site / "source" / "ratchet" / "losses" / "kl.py.html").is_file()
    shown = (site / "source" / "ratchet" / "credit" / "grpo.py.html").read_text(encoding="utf-8")
    assert "group_advantage" in re.sub(r"<[^>]+>", "", shown)


@pytest.mark.slow
def test_the_notebook_is_a_page_with_its_outputs(site: Path) -> None:
    page = (site / "notebooks" / "episodes.html").read_text(encoding="utf-8")
    assert "tasks, panel" in re.sub(r"<[^>]+>", "", page)
    assert (site / "notebooks" / "episodes-1.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_api_shows_signatures_and_docstrings(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "api.html").read_text(encoding="utf-8"))
    assert "Wilson score interval" in text
    assert ":::" not in text


@pytest.mark.slow
@pytest.mark.skipif(browser.chromium() is None, reason="no chromium executable on PATH; install chromium to look at the site in a browser")
def test_opened_as_a_file_it_searches_and_asks_nobody(site: Path, tmp_path: Path) -> None:
    with browser.tab(tmp_path / "profile") as tab:
        tab.open(site / "index.html", width=1200)
        tab.evaluate("const box = document.querySelector('[data-md-component=search-query]'); box.focus(); box.value = 'wilson'; "
                     "box.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true})); box.dispatchEvent(new Event('input', {bubbles: true}))")  # fmt: skip
        until = time.monotonic() + 20
        while not (found := tab.evaluate("document.querySelectorAll('.md-search-result__item').length")) and time.monotonic() < until:
            time.sleep(0.1)
        assert found
        assert tab.errors == []


@pytest.mark.slow
def test_a_link_to_nothing_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    shutil.copy(CHECKOUT / "docs" / "hooks.py", tmp_path / "docs")
    shutil.copytree(CHECKOUT / "docs" / "assets", tmp_path / "docs" / "assets")
    settings = (CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(re.sub(r"  - mkdocstrings:\n(?: {6}.*\n)+", "", settings))
    page = tmp_path / "docs" / "index.md"

    page.write_text("# One page\n\n[the settings](../mkdocs.yml), [this](index.md#one-page)\n")
    assert (well := build(tmp_path, tmp_path / "site")).returncode == 0, well.stderr

    page.write_text("# One page\n\n[page](no-page.md) [code](../ratchet/no_code.py) [place](index.md#no-place)\n")
    broken = build(tmp_path, tmp_path / "site")
    assert broken.returncode != 0
    assert [name for name in ("no-page.md", "no_code.py", "no-place") if name not in broken.stderr] == []
