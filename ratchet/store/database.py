"""Opening the index: SQLite beside the cards, or what RATCHET_DATABASE_URL says; brought up to date by its migrations.

A URL may hold a password, so none is ever shown: messages name the server, never the URL itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from ratchet.errors import RatchetError
from ratchet.store.locks import locked

T = TypeVar("T")
URL_VARIABLE = "RATCHET_DATABASE_URL"
MIGRATIONS = Path(__file__).parent / "migrations"
PRAGMAS = {"journal_mode": "WAL", "synchronous": "NORMAL", "busy_timeout": "30000", "foreign_keys": "ON"}
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0)
MIGRATION_LOCK = 0x52617463  # of PostgreSQL's advisory locks: checkouts on several machines may open one database at once
PASSING_STATES = ("08", "53", "57")  # SQLSTATE classes: connection, resources, shutdown or start; all else will not pass by itself
# psycopg's connections that are refused have no SQLSTATE, only the server's words
LASTING = ("authentication failed", "does not exist", "no pg_hba.conf entry", "invalid connection option", "no password supplied")
# A server that is gone must be noticed: libpq waits for ever by default
POSTGRES_ARGUMENTS = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


class IndexUnreachable(RatchetError):
    """The database server stayed away for all of BACKOFF_S. Nothing is lost: cards and files hold all that the index does."""


def database_url(root: Path) -> URL:
    """The index of the checkout `root`. Raises RatchetError for a URL that is none."""
    given = os.environ.get(URL_VARIABLE)
    if not given:
        return URL.create("sqlite", database=str((root / "registry" / "index.db").absolute()))
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise RatchetError(
            f"{URL_VARIABLE}: is no database URL; write postgresql://USER:PASSWORD@HOST/DATABASE or sqlite:////path/index.db"
        ) from None
    if url.get_backend_name() not in ("sqlite", "postgresql", "postgres"):
        raise RatchetError(f"{URL_VARIABLE}: {url.get_backend_name()} is not supported; take postgresql:// or sqlite:///")
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgres", "postgresql") else url


def shown(url: URL) -> str:
    """What may be said of a URL: never user, password or options."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    host = f"{url.host or ''}{f':{url.port}' if url.port else ''}"
    return f"{url.get_backend_name()}://{host}/{(url.database or '').lstrip('/')}"


def open_index(root: Path) -> Engine:
    """The index of a checkout, with all its tables. Raises RatchetError where it is damaged, newer, or cannot be reached."""
    try:
        return _open(root)
    except DBAPIError as error:
        raise _explained(database_url(root), error) from None


def with_index(root: Path, work: Callable[[Engine], T]) -> T:
    """`work` on the open index. It has to be repeatable: where the database server is away, all is tried again after BACKOFF_S.

    Raises IndexUnreachable where the server stayed away, RatchetError for any other trouble with the database.
    """
    url = database_url(root)
    for delay in (*BACKOFF_S, None):
        try:
            engine = _open(root)
            try:
                return work(engine)
            finally:
                engine.dispose()
        except DBAPIError as error:
            if not _will_pass(url, error):
                raise _explained(url, error) from None
            if delay is None:
                raise IndexUnreachable(
                    f"{shown(url)}: the index's database stayed away for {sum(BACKOFF_S):.0f} s ({_reason(url, error)}); nothing is lost, "
                    "start it again"
                ) from None
        time.sleep(delay)
    raise AssertionError("the last turn returns or raises")


def migrate(connection: Connection) -> None:
    """Brings the tables to the newest revision."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
    command.upgrade(alembic_config(connection), "head")


def alembic_config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _open(root: Path) -> Engine:
    url = database_url(root)
    if url.get_backend_name() == "sqlite" and url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = _engine(url)
    try:
        with locked(root, "migrate"), engine.begin() as connection:
            migrate(connection)
    except CommandError as error:
        raise RatchetError(f"{shown(url)}: {error}; upgrade ratchet-agents, or delete the index and run `ratchet index`") from None
    return engine


def _engine(url: URL) -> Engine:
    try:
        engine = create_engine(url, connect_args=POSTGRES_ARGUMENTS if url.get_backend_name() == "postgresql" else {})
    except (ArgumentError, NoSuchModuleError) as error:
        raise RatchetError(f"{URL_VARIABLE}: {str(error).splitlines()[0]}; take postgresql:// or sqlite:///") from None
    except ModuleNotFoundError as error:
        raise RatchetError(
            f"{URL_VARIABLE}: needs {error.name}; `pip install 'ratchet-agents[postgres]'` brings PostgreSQL's driver"
        ) from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_pragmas)
    return engine


def _will_pass(url: URL, error: DBAPIError) -> bool:
    """Whether the server is away rather than refusing: worth another try."""
    if url.get_backend_name() == "sqlite":
        return False  # a lock was waited for already (busy_timeout)
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state.startswith(PASSING_STATES)
    return error.connection_invalidated or not any(words in str(error.orig) for words in LASTING)


def _explained(url: URL, error: DBAPIError) -> RatchetError:
    reason = _reason(url, error)
    way_out = f"check {URL_VARIABLE}, or delete the index and run `ratchet index`"
    if reason.endswith("is locked"):  # SQLite's, after busy_timeout; what is locked is in use, and must not be deleted
        way_out = "another program has it open for writing: end that one, then go on; nothing is lost"
    return RatchetError(f"{shown(url)}: cannot be used as index ({reason}); {way_out}")


def _reason(url: URL, error: DBAPIError) -> str:
    """The driver's words in one line, without what must stay secret."""
    said = " ".join(str(error.orig).split()) or type(error.orig).__name__
    for secret in (url.password, *(str(value) for name, value in url.query.items() if "password" in name)):
        said = said.replace(str(secret), "***") if secret else said
    return said


def _set_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for name, value in PRAGMAS.items():
        cursor.execute(f"PRAGMA {name}={value}")
    cursor.close()
