"""Requests to an OpenAI-compatible server: limits, retries, and answers that are checked before anything is done with them.

A server is not trusted. Its answers are bounded in size and time, redirects are not followed, the key goes to the configured
address alone, and it is taken out of every text that comes back.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from pydantic import SecretStr
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from ratchet.errors import RatchetError
from ratchet.policies.served_answers import Answer, Nonsense, read_answer, said
from ratchet.policies.served_settings import Served
from ratchet.rollout.noise import uniforms

LONGEST_BACKOFF_S = 60.0
LONGEST_PAUSE_S = 300.0  # a server that asks for a longer wait ends the stage, which then goes on later where it stopped
BODY_BYTES, BODY_BYTES_A_TOKEN = 65536, 1024  # an answer may be this long: so much, and more for each token asked for
_TRY_LATER = frozenset({408, 409, 425, 429})
_TOO_LONG = re.compile(r"context[ _](length|size|window)", re.IGNORECASE)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to ask for. `key` keys the jitter of its retries."""

    body: Mapping[str, Any]
    max_tokens: int
    key: np.uint64


@dataclass(frozen=True, slots=True)
class Failed:
    """No usable answer. `refused`: the server took the request and said no to it; `too_long`: because of its length."""

    reason: str
    attempts: int
    refused: bool = False
    too_long: bool = False


class _Retryable(Exception):
    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _NotTaken(Exception):
    """A 4xx about this one request."""


class Client:
    """Asks one server, `concurrency` requests at a time, from a thread of its own. To be closed."""

    def __init__(self, name: str, settings: Served, vocabulary: int = 0) -> None:
        """`name` is that of the entry in `served`; token ids of answers have to lie below `vocabulary`.

        Raises RatchetError where the variable of the key is not set.
        """
        self.name, self.settings, self.vocabulary = name, settings, vocabulary
        self._key = key_of(name, settings)
        self._path = settings.url.rstrip("/") + ("/chat/completions" if settings.api == "chat" else "/completions")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"served {name}", daemon=True)
        self._thread.start()
        self._http = self._run(self._open())

    def __repr__(self) -> str:
        return f"Client({self.name!r}, {self.settings.url!r}, {self.settings.model!r})"

    def close(self) -> None:
        """Closes the connections and ends the thread; a second call does nothing."""
        if self._thread.is_alive():
            self._run(self._finish())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def ask(self, requests: Sequence[Request], on_answer: Callable[[int, Answer | Failed], None] | None = None) -> list[Answer | Failed]:
        """Answers in the order of `requests`; `on_answer(index, answer)` hears of each as it comes, from another thread.

        Raises RatchetError where asking further makes no sense: a key that is refused, a redirect, a spent quota.
        """
        return self._run(self._ask_all(requests, on_answer or (lambda index, answer: None)))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: nothing goes on in the background
            raise

    async def _open(self) -> httpx.AsyncClient:
        self._free = asyncio.Semaphore(self.settings.concurrency)
        self._next_at = self._paused_until = 0.0
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.get_secret_value()}"
        is_here = urlsplit(self.settings.url).hostname in _LOOPBACK
        # A proxy of the environment is for other machines, and a key in somebody's .netrc is not meant for us.
        limits = httpx.Limits(max_connections=self.settings.concurrency)
        return httpx.AsyncClient(headers=headers, timeout=None, follow_redirects=False, trust_env=not is_here, limits=limits)

    async def _finish(self) -> None:
        asking = asyncio.all_tasks() - {asyncio.current_task()}
        for task in asking:  # those of a call that was interrupted
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._http.aclose()

    async def _ask_all(self, requests: Sequence[Request], on_answer: Callable[[int, Answer | Failed], None]) -> list[Answer | Failed]:
        async def one(index: int, request: Request) -> Answer | Failed:
            answer = await self._ask(request)
            on_answer(index, answer)
            return answer

        tasks = [asyncio.ensure_future(one(index, request)) for index, request in enumerate(requests)]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _ask(self, request: Request) -> Answer | Failed:
        attempts = 0

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            return max(backoff_s(self.settings.backoff_s, state.attempt_number, request.key), getattr(error, "wait_s", 0.0))

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.settings.retries + 1), wait=wait, retry=retry_if_exception_type(_Retryable), reraise=True
        )
        try:
            async for attempt in retrying:
                with attempt:
                    attempts += 1
                    answer = await self._attempt(request)
            return answer.after(attempts)
        except _Retryable as error:
            return Failed(str(error), attempts)
        except _NotTaken as error:
            return Failed(str(error), attempts, refused=True, too_long=bool(_TOO_LONG.search(str(error))))

    async def _attempt(self, request: Request) -> Answer:
        async with self._free:
            await self._my_turn()
            try:
                async with asyncio.timeout(self.settings.timeout_s):
                    status, headers, raw = await self._post(request)
            except TimeoutError:
                raise _Retryable(f"no answer within {self.settings.timeout_s:g} s") from None
            except httpx.HTTPError as error:
                raise _Retryable(self._clean(f"{type(error).__name__} {error}")) from None
        if 200 <= status < 300:
            return self._take(headers, raw, request.max_tokens)
        raise self._problem(status, headers, raw)

    async def _my_turn(self) -> None:
        """Waits for this request's place in the minute, and while the server has asked everybody to wait."""
        loop = asyncio.get_running_loop()
        if self.settings.requests_per_minute is not None:
            at = max(loop.time(), self._next_at)
            self._next_at = at + 60.0 / self.settings.requests_per_minute
            await asyncio.sleep(at - loop.time())
        while (left := self._paused_until - loop.time()) > 0:
            await asyncio.sleep(left)

    async def _post(self, request: Request) -> tuple[int, httpx.Headers, bytes]:
        raw = bytearray()
        limit = BODY_BYTES + BODY_BYTES_A_TOKEN * request.max_tokens
        async with self._http.stream("POST", self._path, content=json.dumps(request.body).encode()) as response:
            async for part in response.aiter_raw():
                raw += part
                if len(raw) > limit:
                    raise _Retryable(f"an answer of more than {limit} bytes")
            return response.status_code, response.headers, bytes(raw)

    def _take(self, headers: httpx.Headers, raw: bytes, max_tokens: int) -> Answer:
        kind = headers.get("content-type", "")
        if "json" not in kind.lower() or headers.get("content-encoding", "identity") != "identity":
            raise _Retryable(self._clean(f"an answer of type {kind or 'none'} instead of JSON"))
        try:
            answer = read_answer(self.settings.api, raw, max_tokens, self.vocabulary)
        except Nonsense as error:
            raise _Retryable(self._clean(str(error))) from None
        return answer.with_text(self.redact(answer.text))

    def _problem(self, status: int, headers: httpx.Headers, raw: bytes) -> Exception:
        """What a status that is no success means: the end of the stage, of this request, or of this attempt."""
        text = self._clean(said(raw))
        where = f"served.{self.name}: {self.settings.url} answers {status}"
        if status in (401, 403):
            return RatchetError(f"{where}: {self._about_key()}; then go on with `ratchet run --resume ID`")
        if 300 <= status < 400:
            target = self._clean(urlsplit(headers.get("location", "")).netloc) or "another path"
            return RatchetError(f"{where}, a redirect to {target}, which is not followed; set served.{self.name}.url to the right address")
        if status == 429 and "insufficient_quota" in text + said(raw, "code"):
            return RatchetError(f"{where}: the quota of this key is spent ({text}); raise it, then go on with `ratchet run --resume ID`")
        if status in _TRY_LATER or status >= 500:
            return self._later(status, headers, text)
        return _NotTaken(f"{status} {text}".strip())

    def _later(self, status: int, headers: httpx.Headers, text: str) -> Exception:
        wait_s = retry_after_s(headers.get("retry-after", ""))
        if wait_s > LONGEST_PAUSE_S:
            return RatchetError(
                f"served.{self.name}: {self.settings.url} asks to wait {wait_s:.0f} s; wait, then go on with `ratchet run --resume ID`"
            )
        self._paused_until = max(self._paused_until, self._loop.time() + wait_s)
        return _Retryable(f"{status} {text}".strip(), wait_s)

    def _about_key(self) -> str:
        if self._key is None:
            return f"it wants a key; name the variable that holds one in served.{self.name}.key_env"
        if self.settings.key_secret is not None:
            return f"the key in the Prefect Secret {self.settings.key_secret} is wrong, expired or lacks a right; renew it"
        return f"the key in the variable {self.settings.key_env} is wrong, expired or lacks a right; renew it"

    def redact(self, text: str) -> str:
        """The text without the key, where the server put it in."""
        return text if self._key is None else text.replace(self._key.get_secret_value(), "[key]")

    def _clean(self, text: str) -> str:
        """One line for a person, without the key and without anything that a terminal would obey."""
        plain = "".join(letter if letter.isprintable() else " " for letter in self.redact(text))
        return " ".join(plain.split())[:200]


def key_of(name: str, settings: Served) -> SecretStr | None:
    """The key from its environment variable; None where the server gets none. Raises RatchetError, which never shows it."""
    variable = settings.key_variable
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value and settings.key_secret is not None:
        raise RatchetError(
            f"served.{name}.key_secret: the key is not here; `ratchet run` takes it from Prefect, and a bare `dvc repro` from {variable}"
        )
    if not value:
        raise RatchetError(f"served.{name}.key_env: {variable} is not set; put the key there, for instance `export {variable}=…`")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise RatchetError(f"served.{name}: {variable} holds no usable key (spaces, line breaks or letters that no key has); set it again")
    return SecretStr(value)


def backoff_s(first_s: float, attempt: int, key: np.uint64) -> float:
    """Seconds before the next request after `attempt` (from 1) failed: twice as long each time, and between half of that and all of
    it, by `key`, so that what failed together does not come back together."""
    return min(first_s * 2.0 ** (attempt - 1), LONGEST_BACKOFF_S) * (0.5 + 0.5 * float(uniforms(key, attempt)))


def retry_after_s(value: str) -> float:
    """Seconds that a Retry-After header asks for: a number of them, or a date. 0 where it says nothing that can be read."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
