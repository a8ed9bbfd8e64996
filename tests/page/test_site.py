"""The web page: what it shows, to whom, and that whatever a model wrote stays text."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import func, select
from starlette.testclient import TestClient

from flows.ui import make_app
from flows.workspace import list_runs
from ratchet.page import guard
from ratchet.page.shelf import Shelf
from ratchet.page.site import create
from ratchet.store.cards import read_card
from ratchet.store.champions import champions
from ratchet.store.database import URL_VARIABLE, open_index
from ratchet.store.tables import episodes
from tests.page.checkout import EPISODE, RUN, checkout
from tests.page.fabricate import hashed
from tests.page.test_report import HOSTILE, Page

WARM, KEPT, CHAMPION = hashed("warm"), hashed("round", 1), hashed("round", 2)
PAGES = ("/", f"/versions/{CHAMPION}", f"/versions/{WARM}", "/compare", "/runs", f"/runs/{RUN}", "/episodes", f"/episodes/{EPISODE}", "/alerts")
TOKEN = "a-token-of-the-test"
ROW = re.compile(r'data-open href="/episodes/([^"?]+)')


def client_of(root: Path, token: str | None = None) -> TestClient:
    return TestClient(make_app(root, token), base_url="http://127.0.0.1:8400", follow_redirects=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(URL_VARIABLE, raising=False)
        yield checkout(tmp_path_factory.mktemp("site") / "checkout", hostile=HOSTILE)


@pytest.fixture(scope="module")
def site(root: Path) -> TestClient:
    return client_of(root)


def text(site: TestClient, address: str, status: int = 200) -> str:
    answer = site.get(address)
    assert answer.status_code == status, address
    return answer.text


@pytest.mark.parametrize("address", PAGES)
def test_a_page_is_balanced_html_that_loads_only_its_own_assets(site: TestClient, address: str) -> None:
    answer = site.get(address)
    page = Page(answer.text)
    assert answer.status_code == 200 and page.unbalanced == [] and answer.text.startswith("<!doctype html>")
    loaded = [attrs.get("src") or attrs.get("href") for tag, attrs in page.tags if tag in ("script", "link", "img", "iframe")]
    assert loaded and all(one and one.startswith("/assets/") for one in loaded)
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on") or key == "style"]
    assert "default-src 'none'" in answer.headers["content-security-policy"] and answer.headers["x-frame-options"] == "DENY"
    for one in loaded:
        assert site.get(str(one)).status_code == 200
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8400", "localhost.evil", "127.0.0.1@evil.example", ""])
def test_a_foreign_host_is_refused_before_anything_is_read(site: TestClient, host: str) -> None:
    answer = site.get("/", headers={"host": host})
    assert answer.status_code == 421 and "Versions" not in answer.text


def test_this_machine_is_answered_by_any_of_its_names() -> None:
    assert all(map(guard.is_own, ("127.0.0.1", "127.0.0.1:8400", "localhost:1", "LOCALHOST", "[::1]:8400", "[::1]")))
    assert not any(map(guard.is_own, ("127.0.0.1:x", "0.0.0.0", "[::2]", "127.0.0.2", "a.localhost")))


@pytest.mark.parametrize(
    "address",
    [
        "/runs/..%2f..%2f..%2fetc", "/runs/%2e%2e/report.html", f"/runs/{RUN}/rounds/..%2f2/drift.html", f"/runs/{RUN}/rounds/2/..%2fdecision.html",
        f"/runs/{RUN}/rounds/2/decision.html", f"/runs/{RUN}/rounds/%C2%B2/drift.html", "/assets/..%2fsite.html.j2", "/assets/site.html.j2",
        "/monitor/..%2f..%2fregistry/report.html", "/versions/..%2fchampions", "/episodes/..%2f..%2fetc%2fpasswd", "/nothing", "/docs", "/openapi.json",
    ],
)  # fmt: skip
def test_no_address_leads_out_of_what_is_meant_to_be_shown(site: TestClient, address: str) -> None:
    answer = site.get(address)
    assert answer.status_code == 404 and "root:" not in answer.text and "{%" not in answer.text


def test_versions_show_who_is_champion_where_they_come_from_and_how_they_fared(site: TestClient) -> None:
    page = text(site, "/")
    assert re.search(rf"Champion <a href=\"/versions/{CHAMPION}\">", page) and page.index(CHAMPION) < page.rindex(WARM)
    assert page.count('class="knot k-archived"') == 2 and page.count('class="knot k-champion"') == 1
    shown = text(site, f"/versions/{CHAMPION}")
    assert "gain on confirm" in shown and "as its parent's" in shown and "demonstrations" in shown and "champion since" in shown
    assert f'href="/versions/{WARM}"' in shown and "only reads" in shown and "<form method=\"post\"" not in shown
    assert "did you mean" in text(site, "/versions/ffffffffffff", 404)


def test_two_versions_are_compared_on_the_panel_that_both_played(site: TestClient, root: Path) -> None:
    shown = text(site, "/compare")
    assert f'value="{WARM}" selected' in shown and f'value="{CHAMPION}" selected' in shown and "measurably better" in shown
    ticked = text(site, f"/compare?v={CHAMPION}&v={KEPT}&panel=confirm")
    assert f'value="{KEPT}" selected' in ticked and "confirm panel in 24 clusters" in ticked
    assert "was not measured on panel test" in text(site, f"/compare?a={KEPT}&b={CHAMPION}")
    assert "the same version" in text(site, f"/compare?a={WARM}&b={WARM}")
    assert "no version" in text(site, "/compare?a=nothing&b=champion")
    both = re.findall(r'<td><a href="/episodes/(\w+)">episode</a> </td><td><a href="/episodes/(\w+)">episode</a> </td>', ticked)
    assert both and all(site.get(f"/episodes/{one}").status_code == 200 for one in both[0]), "a flipped task leads to the episodes of both"
    task = re.search(r'href="(/episodes\?task=[^"]+)"', shown)
    assert task and site.get(task[1].replace("&amp;", "&")).status_code == 200


def test_a_run_shows_its_rounds_with_checks_drift_and_their_pages(site: TestClient) -> None:
    assert RUN in text(site, "/runs") and "2 promoted" in text(site, "/runs")
    shown = text(site, f"/runs/{RUN}")
    assert shown.index('id="round-2"') < shown.index('id="round-1"') and "success_of_policy" in shown and "action_type" in shown
    assert "2 columns did not drift" in shown and f'href="/episodes/{hashed("w", 0)}#t0"' in shown
    for name in ("report.html", "rounds/2/drift.html"):
        answer = site.get(f"/runs/{RUN}/{name}")
        assert answer.status_code == 200 and answer.headers["content-security-policy"].startswith("sandbox allow-scripts")
        assert "allow-same-origin" not in answer.headers["content-security-policy"]


def test_the_list_pages_through_everything_once_and_back(site: TestClient, root: Path) -> None:
    with open_index(root).connect() as connection:
        count = connection.execute(select(func.count()).select_from(episodes)).scalar_one()
    seen, pages, at = [], [], "/episodes"
    while at:
        shown = text(site, at)
        seen += ROW.findall(shown)
        pages.append(ROW.findall(shown))
        onward = re.search(r'rel="next" href="([^"]+)"', shown)
        last, at = at, f"/episodes{onward[1].replace('&amp;', '&')}" if onward else ""
    assert len(seen) == count == 300 and f">{count}</span>" in shown
    for expected in reversed(pages[:-1]):
        back = re.search(r'rel="prev" href="([^"]+)"', text(site, last))
        assert back
        last = f"/episodes{back[1].replace('&amp;', '&')}"
        assert ROW.findall(text(site, last)) == expected
    assert 'rel="prev"' not in text(site, last) and ROW.findall(text(site, "/episodes?after=nothing.x")) == pages[0]


@pytest.mark.parametrize(
    "query", ["task='; DROP TABLE episodes; --", "policy=\x00\x1b", "round=²", "round=99999999999999999999", "outcome=x", "after=.", "run=%", "stage=" + "x" * 5000]
)
def test_a_filter_of_nonsense_finds_nothing_or_is_left_out(site: TestClient, query: str) -> None:
    name, _, value = query.partition("=")
    shown = text(site, f"/episodes?{name}={quote(value)}")
    assert Page(shown).unbalanced == [] and "\x1b" not in shown
    assert text(site, "/episodes").count("data-row") == 50


def test_an_episode_has_what_meter_and_critic_said_as_curves_beside_its_text(site: TestClient) -> None:
    shown = text(site, f"/episodes/{EPISODE}")
    assert [name for name in ("Meter cost", "Value", "Advantage", "Weight") if f">{name}</span>" in shown] == ["Meter cost", "Value", "Advantage", "Weight"]
    steps = shown.count('<li id="t')
    assert steps == 7 and shown.count('class="lanes"') == steps and "the meter&#39;s answer could not be read" in shown
    fourth = shown[shown.index('<li id="t3"') : shown.index('<li id="t4"')]
    assert fourth.count("<circle") == 3, "a NaN is no point of a curve"
    assert "nan" not in shown.lower().replace("nano", "")


def test_an_episode_without_sidecars_is_its_text_alone(site: TestClient) -> None:
    plain = ROW.findall(text(site, "/episodes?stage=evaluation@2"))[0]
    shown = text(site, f"/episodes/{plain}")
    assert "lanes" not in shown and "Meter cost" not in shown and '<mark><span class="text">' in shown


def test_hostile_text_is_shown_and_does_nothing(site: TestClient) -> None:
    one = ROW.findall(text(site, "/episodes?stage=final"))[0]
    shown = text(site, f"/episodes/{one}")
    page = Page(shown)
    assert page.unbalanced == [] and len(shown) < 300_000
    assert [tag for tag, _ in page.tags].count("script") == 1 and "img" not in [tag for tag, _ in page.tags]
    assert "&lt;script&gt;alert(1)" in shown and "\u241b[31mred" in shown and "\u27e8U+202E\u27e9" in shown and "{{ 7*7 }}" in shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\ufeff]", shown)


def test_alerts_say_what_became_of_them(site: TestClient) -> None:
    shown = text(site, "/alerts")
    assert "1 waiting" in shown and "answered 503" in shown and "retrying" in shown and "the disk is full &lt;b&gt;now" in shown
    assert shown.index("stage harvest@3 failed") < shown.index("promoted " + CHAMPION) and f'href="/runs/{RUN}#round-2"' in shown
    assert "action_type" not in text(site, "/alerts?kind=stage.failed")


def test_a_database_that_is_away_is_one_page_that_says_what_still_works(root: Path) -> None:
    engine = open_index(root)
    app = create(Shelf(root, engine, list_runs))
    site = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE episodes RENAME TO gone")
    try:
        answer = site.get("/episodes")
        assert answer.status_code == 503 and "Nothing is lost" in answer.text and site.get("/").status_code == 200
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE gone RENAME TO episodes")


def test_what_changed_on_disk_is_seen_by_the_next_request(root: Path) -> None:
    shelf = Shelf(root, open_index(root), list_runs)
    before = shelf.cards()
    assert shelf.cards() is before, "unchanged cards are not read again"
    path = root / f"registry/{KEPT}.json"
    content = path.read_text()
    path.write_text(json.dumps(json.loads(content) | {"note": "longer"}))
    assert next(card for card in shelf.cards() if card["version"] == KEPT)["note"] == "longer"
    path.write_text(content)


@pytest.fixture(scope="module")
def copied(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(root, tmp_path_factory.mktemp("decided") / "checkout", symlinks=True))


@pytest.fixture
def deciding(copied: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(guard, "WRONG_TOKEN_S", 0.0)
    return client_of(copied, TOKEN)


def champion(root: Path) -> str:
    return champions(root / "registry")["quickstart"]


def test_without_the_token_nothing_is_decided(site: TestClient, deciding: TestClient, root: Path, copied: Path) -> None:
    form = {"reason": "because", "by": "Ada"}
    assert site.post(f"/versions/{WARM}/promote", data=form | {"token": ""}).status_code == 403
    for token in ("", "wrong", TOKEN[:-1], TOKEN + "x"):
        answer = deciding.post(f"/versions/{WARM}/promote", data=form | {"token": token})
        assert answer.status_code == 403 and "not the token" in answer.text and "because" in answer.text and TOKEN not in answer.text
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert deciding.post(f"/versions/{WARM}/promote", data=form | {"token": TOKEN}, headers=headers).status_code == 403
    assert deciding.get(f"/versions/{WARM}/promote").status_code in (404, 405)
    assert champion(root) == champion(copied) == CHAMPION


def test_with_the_token_a_person_promotes_and_rolls_back_on_record(deciding: TestClient, copied: Path) -> None:
    form = {"token": TOKEN, "by": "Ada", "line": "quickstart"}
    refused = deciding.post(f"/versions/{WARM}/promote", data=form | {"reason": " "})
    assert refused.status_code == 400 and "is empty; say why" in refused.text
    answer = deciding.post(f"/versions/{KEPT}/promote", data=form | {"reason": "by <b>eye</b>"})
    assert answer.status_code == 303 and answer.headers["location"] == f"/versions/{KEPT}" and champion(copied) == KEPT
    shown = text(deciding, f"/versions/{KEPT}")
    assert "by &lt;b&gt;eye" in shown and "by Ada" in shown and "Roll back to the champion before" in shown and TOKEN not in shown
    assert deciding.post(f"/versions/{KEPT}/rollback", data=form | {"reason": "worse"}).headers["location"] == f"/versions/{CHAMPION}"
    entries = read_card(copied / "registry", CHAMPION)
    assert [one["status"] for one in entries["statuses"]] == ["candidate", "champion", "archived", "champion"]
    assert (entries["decisions"][-1]["by"], entries["decisions"][-1]["reasons"]) == ("Ada", ["worse"])


def test_a_form_that_is_too_large_is_no_form(deciding: TestClient, copied: Path) -> None:
    before = champion(copied)
    assert deciding.post(f"/versions/{WARM}/promote", data={"token": TOKEN, "reason": "x" * 100_000}).status_code == 403
    assert champion(copied) == before
