"""`ratchet ui`: the page of this checkout in a browser, on this machine only."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

from flows.commands import root
from flows.workspace import list_runs
from ratchet.errors import RatchetError

HOST = "127.0.0.1"
START_S = 30.0


def show(port: int, decide: bool) -> None:
    """`ratchet ui`, until Ctrl-C."""
    checkout = root()
    listening = _listen(port)
    token = secrets.token_urlsafe(32) if decide else None
    server = _server(checkout, token)
    print(f"open http://{HOST}:{listening.getsockname()[1]} · Ctrl-C ends it", flush=True)
    if token is not None:
        print(f"token for decisions: {token}", flush=True)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    print("stopping", flush=True)


@contextmanager
def serving(checkout: Path, port: int) -> Iterator[str]:
    """The page in a thread of this process, reading only; gives its address. `port` 0 takes any. Raises OSError."""
    listening = socket.create_server((HOST, port))
    server = _server(checkout, None)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(START_S)
        listening.close()


def make_app(checkout: Path, token: str | None = None) -> Any:
    """The application of a checkout. An index that holds nothing of it yet is filled first. Raises RatchetError."""
    from ratchet.page.shelf import Shelf
    from ratchet.page.site import create
    from ratchet.store.database import open_index
    from ratchet.store.index import fill, is_new, workspaces

    engine = open_index(checkout)
    if is_new(engine, checkout) and workspaces(checkout):
        print("takes the runs into the index first", flush=True)
        fill(engine, checkout)
    return create(Shelf(checkout, engine, list_runs, _person()), token)


def _person() -> str:
    from flows.deciding import person

    return person()


def _server(checkout: Path, token: str | None) -> Any:
    import uvicorn

    config = uvicorn.Config(make_app(checkout, token), log_level="warning", access_log=False, server_header=False, lifespan="off")
    return uvicorn.Server(config)


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise RatchetError(f"port {port} on {HOST} cannot be used ({error.strerror}); choose another with --port") from None
