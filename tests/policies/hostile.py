"""A server that does as it is told: each request takes the next thing of a script, the last one for ever."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Say:
    """One response. `hang_s` before it, `trickle_s` between its bytes; `drop` closes the connection instead."""

    body: Any = None  # bytes as they are, anything else as JSON
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    trickle_s: float = 0.0
    drop: bool = False

    @property
    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def reply(text: str | None, finish: str = "stop", **message: Any) -> Say:
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return Say({"choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 3}})


@dataclass
class Hostile:
    """What was asked, in the order in which it came, and what is answered."""

    script: list[Say]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, handler: BaseHTTPRequestHandler) -> Say:
        body = json.loads(handler.rfile.read(int(handler.headers.get("content-length") or 0)) or b"{}")
        with self.lock:
            self.bodies.append(body)
            self.headers.append({name.lower(): value for name, value in handler.headers.items()})
            self.at.append(time.monotonic())
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def leave(self) -> None:
        with self.lock:
            self.under_way -= 1


@contextmanager
def hostile(*script: Say) -> Iterator[Hostile]:
    server = Hostile(list(script))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            one = server.take(self)
            time.sleep(one.hang_s)
            server.leave()
            if one.drop:
                self.connection.close()
                self.close_connection = True
                return
            self.send_response(one.status)
            for name, value in {"Content-Type": one.kind, "Content-Length": str(len(one.raw)), **one.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for at in range(0, len(one.raw), 1 if one.trickle_s else 65536):
                    self.wfile.write(one.raw[at : at + (1 if one.trickle_s else 65536)])
                    time.sleep(one.trickle_s)
            except OSError:
                self.close_connection = True  # the client has had enough

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        server.url = f"http://127.0.0.1:{listening.server_address[1]}/v1"
        try:
            yield server
        finally:
            listening.shutdown()
