"""The page on a real PostgreSQL server and on SQLite: the same bytes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ratchet.store.database import URL_VARIABLE
from tests.page.checkout import EPISODE, RUN, checkout
from tests.page.test_report import HOSTILE
from tests.page.test_site import CHAMPION, WARM, client_of
from tests.store.conftest import postgres  # noqa: F401  (a fixture)

CHECKOUT_OF_CURSOR = re.compile(r"after=[0-9a-f]{12}")  # each checkout has a name of its own in the database
ADDRESSES = (
    "/", f"/versions/{CHAMPION}", f"/compare?a={WARM}&b={CHAMPION}&panel=test", "/runs", f"/runs/{RUN}", "/episodes", "/episodes?outcome=failed",
    "/episodes?stage=online%402&outcome=solved", f"/episodes?policy={CHAMPION}", "/episodes?task=mug", f"/episodes/{EPISODE}",
)  # fmt: skip


def test_both_databases_behave_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    pages = {}
    for name in ("sqlite", "postgres"):
        if name == "sqlite":
            monkeypatch.delenv(URL_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(URL_VARIABLE, request.getfixturevalue("postgres").url())
        site = client_of(checkout(tmp_path / "checkout", hostile=HOSTILE))
        answers = {address: site.get(address) for address in ADDRESSES}
        assert {answer.status_code for answer in answers.values()} == {200}
        pages[name] = {address: CHECKOUT_OF_CURSOR.sub("after=", answer.text) for address, answer in answers.items()}
        shutil.rmtree(tmp_path / "checkout")  # the other's is at the same place, which pages name
    for address in ADDRESSES:
        assert pages["sqlite"][address] == pages["postgres"][address], address
