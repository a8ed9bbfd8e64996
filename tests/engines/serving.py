"""An ASGI app behind a real socket, for as long as a `with` lasts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from ratchet.engines.local import LocalEngine
from ratchet.engines.server import create_app
from ratchet.episodes.template import Template
from tests.models import tiny


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of its API."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def engine(template: Template, slots: int = 8, length: int = 256, seed: int = 1) -> LocalEngine:
    return LocalEngine(tiny.model(len(template.tokenizer), seed=seed), slots=slots, length=length, end=template.ends, pad=template.pad)


def tiny_app(template: Template | None = None, slots: int = 8, length: int = 256, key: str | None = None) -> Any:
    one = template or tiny.template()
    return create_app(engine(one, slots, length), one, name="tiny", context=length, key=key)
