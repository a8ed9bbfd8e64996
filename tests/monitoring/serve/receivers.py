"""Receivers of alerts on this machine: a webhook's, and a mail server's."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@contextmanager
def hook(port: int) -> Iterator[list[dict[str, Any]]]:
    """What was posted there, in its order."""
    got: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with _serving(HTTPServer(("127.0.0.1", port), Receiver)):
        yield got


@contextmanager
def mail(port: int) -> Iterator[list[str]]:
    """What was mailed there, headers and text."""
    got: list[str] = []

    class Receiver(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 here")
            data: list[str] | None = None
            for raw in self.rfile:
                line = raw.decode().rstrip("\r\n")
                if data is None:
                    data = [] if line.upper() == "DATA" else None
                    self.say("221 bye" if line.upper() == "QUIT" else "250 ok" if data is None else "354 go on")
                elif line == ".":
                    got.append("\n".join(data))
                    data = None
                    self.say("250 ok")
                else:
                    data.append(line)

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    with _serving(Threading(("127.0.0.1", port), Receiver)):
        yield got


class Threading(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
