"""The page in a headless Chromium, as a person uses it: versions → compare → episode → alert, by mouse and by keys, wide and narrow.

Pictures go to RATCHET_PICTURES where that is set.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.ui import serving
from ratchet.store.database import URL_VARIABLE
from tests.page import browser
from tests.page.browser import Tab
from tests.page.checkout import EPISODE, RUN, checkout
from tests.page.fabricate import hashed

WARM, CHAMPION = hashed("warm"), hashed("round", 2)
pytestmark = pytest.mark.skipif(browser.chromium() is None, reason="needs a Chromium; on Debian: apt-get install chromium")


def click(tab: Tab, selector: str, then: str) -> None:
    tab.wait(f"!!document.querySelector({selector!r})")
    tab.evaluate(f"document.querySelector({selector!r}).click()")
    tab.wait(f"document.readyState == 'complete' && {then}")


def keep(tab: Tab, name: str, tmp_path: Path) -> None:
    path = Path(os.environ.get("RATCHET_PICTURES") or tmp_path) / f"page-{name}.png"
    tab.picture(path)
    assert path.stat().st_size > 10_000


def test_versions_compare_episode_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    root = checkout(tmp_path / "checkout", hostile="<script>document.title = 'caught'</script>" + "A" * 100_000)
    with serving(root, 0) as url, browser.tab(tmp_path / "profile") as tab:
        tab.visit(f"{url}/", 1280)
        keep(tab, "versions", tmp_path)
        tab.evaluate(f"['{WARM}', '{CHAMPION}'].forEach(v => document.querySelector(`input[value='${{v}}']`).click())")
        click(tab, "form[action='/compare'] button", "location.pathname == '/compare'")
        assert tab.evaluate("[...document.querySelectorAll('select')].map(one => one.value).join()") == f"{WARM},{CHAMPION},test"
        keep(tab, "compare", tmp_path)
        click(tab, "main a[href*='/episodes']", "location.pathname.startsWith('/episodes')")
        tab.visit(f"{url}/episodes?stage=online%402", 1280)
        tab.key("j")
        tab.key("j")
        assert tab.evaluate("document.querySelectorAll('.at').length == 1 && document.activeElement.matches('tr.at a[data-open]')")
        tab.key("Enter")
        tab.wait("document.readyState == 'complete' && !!document.querySelector('.turns')")
        tab.visit(f"{url}/episodes/{EPISODE}#t3", 1280, dark=True)
        assert tab.evaluate("getComputedStyle(document.querySelector('.lanes')).display") == "block"
        heights = "[...document.querySelectorAll('.turns > li')].map(li => Math.abs(li.querySelector('svg.stretch').getBoundingClientRect().height - li.querySelector('.lanes').getBoundingClientRect().height))"
        assert max(tab.evaluate(heights)) < 1.0, "a turn's stretch of the curves is as high as the turn"
        keep(tab, "episode", tmp_path)
        tab.key("g")
        tab.key("a")
        tab.wait("location.pathname == '/alerts' && document.readyState == 'complete'")
        keep(tab, "alerts", tmp_path)
        click(tab, f"a[data-open][href='/runs/{RUN}#round-2']", f"location.pathname == '/runs/{RUN}'")
        keep(tab, "run", tmp_path)
        for address in ("/", f"/versions/{CHAMPION}", "/compare", "/runs", f"/runs/{RUN}", "/episodes", f"/episodes/{EPISODE}", "/episodes?stage=final", "/alerts"):
            tab.visit(f"{url}{address}", 390, dark=True)
            tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            assert tab.evaluate("document.documentElement.scrollWidth") == 390, address
        tab.visit(f"{url}/episodes?stage=final", 390)
        click(tab, "a[data-open]", "!!document.querySelector('.turns')")
        assert tab.evaluate("document.title.includes('caught')") is False and tab.evaluate("document.documentElement.scrollWidth") == 390
        keep(tab, "phone", tmp_path)
        tab.visit(f"{url}/runs/{RUN}/rounds/2/drift.html", 1280)
        assert tab.evaluate("document.title") == "Drift of round 2" and tab.evaluate("self.origin") == "null"
        assert tab.errors == []
