"""Opening the index: SQLite beside the cards, or what RATCHET_DATABASE_URL says; brought up to date by its migrations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, DatabaseError

from ratchet.errors import RatchetError
from ratchet.store.locks import locked

URL_VARIABLE = "RATCHET_DATABASE_URL"
MIGRATIONS = Path(__file__).parent / "migrations"
PRAGMAS = {"journal_mode": "WAL", "synchronous": "NORMAL", "busy_timeout": "30000", "foreign_keys": "ON"}


def database_url(root: Path) -> str:
    """The index of the checkout `root`."""
    return os.environ.get(URL_VARIABLE) or f"sqlite:///{(root / 'registry' / 'index.db').absolute()}"


def open_index(root: Path) -> Engine:
    """The index of a checkout, with all its tables. Raises RatchetError where it is damaged, newer, or cannot be reached."""
    url = database_url(root)
    engine = _engine(url)
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    shown = engine.url.render_as_string(hide_password=True)
    try:
        with locked(root, "migrate"), engine.begin() as connection:
            migrate(connection)
    except CommandError as error:
        raise RatchetError(f"{shown}: {error}; upgrade ratchet-agents, or delete the index and run `ratchet index`") from None
    except DatabaseError as error:
        reason = str(error.orig).splitlines()[0]
        way_out = f"check {URL_VARIABLE}, or delete the index and run `ratchet index`"
        raise RatchetError(f"{shown}: cannot be used as index ({reason}); {way_out}") from None
    return engine


def migrate(connection: Connection) -> None:
    """Brings the tables to the newest revision."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _engine(url: str) -> Engine:
    try:
        engine = create_engine(url)
    except (ArgumentError, ModuleNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise RatchetError(f"{URL_VARIABLE}: {reason}; give a URL such as sqlite:////path/index.db, and install its driver") from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_pragmas)
    return engine


def _set_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for name, value in PRAGMAS.items():
        cursor.execute(f"PRAGMA {name}={value}")
    cursor.close()
