"""Who may ask, and what an answer carries: only this machine by its own name, and nothing that a browser would load from elsewhere."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from anyio.to_thread import current_default_thread_limiter

AT_ONCE = 2  # pages that are made: more threads take turns in pieces of milliseconds, so that all of them are late
HOSTS = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY = 16_384  # bytes of a form
WRONG_TOKEN_S = 0.5  # nobody guesses 256 bits, but nobody should try at full speed either
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# a report is one file with its own style and script; what it was made from came from models, so it gets no origin to act in
REPORT_POLICY = (
    "sandbox allow-scripts allow-modals; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Guard:
    """ASGI middleware: a foreign Host is refused before anything is read, and every answer gets HEADERS.

    Another Host is a page of somebody's that had its own name resolved to this machine (DNS rebinding); a browser would let it read
    everything here.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if not is_own(headers.get(b"host", "")):
            await _refuse(send, 421, b"This page answers to 127.0.0.1 and localhost only.\n")
            return
        if scope["method"] == "POST" and not is_same_origin(headers):
            await _refuse(send, 403, b"This came from another page.\n")
            return

        current_default_thread_limiter().total_tokens = AT_ONCE

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                added = HEADERS | {"content-security-policy": POLICY, "cache-control": "no-cache"}
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in added.items() if name.encode() not in known),
                ]
            await send(message)

        await self.app(scope, receive, guarded)


def is_own(host: str) -> bool:
    """Whether a Host header names this machine, with or without a port."""
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not name:
        name, port = host, ""
    return name.lower() in HOSTS and (port == "" or port.isdigit())


def is_same_origin(headers: Mapping[bytes, str]) -> bool:
    """Whether a form came from one of our own pages, as far as the browser says."""
    site, origin = headers.get(b"sec-fetch-site", "none"), headers.get(b"origin")
    return site in ("same-origin", "none") and (origin is None or urlsplit(origin).netloc == headers.get(b"host"))


async def form_of(request: Any) -> dict[str, str]:
    """Fields of an urlencoded form; empty where it is none or too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            return {}
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20))


async def holds(token: str | None, given: str) -> bool:
    """Whether `given` is the token; a wrong one takes a moment. Without a token nothing is."""
    right = token is not None and hmac.compare_digest(token.encode(), given.strip().encode("utf-8", "replace"))
    if not right:
        await asyncio.sleep(WRONG_TOKEN_S)
    return right


async def _refuse(send: Any, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
