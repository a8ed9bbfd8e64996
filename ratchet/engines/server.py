"""An OpenAI-compatible server around the engine of this process: `python -m ratchet.engines.server MODEL --port 8000`.

`/v1/completions` takes text or token ids and gives ids, log-probs and entropies of what was sampled; `/v1/chat/completions`
renders messages with the model's chat template. What a request does not ask for in these terms is refused, never ignored. An
episode that comes back with one more turn is read on from where it stood: keys and values stay in the slot.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from ratchet.engines.base import Engine, Generated
from ratchet.episodes.template import Template
from ratchet.errors import RatchetError
from ratchet.models.pretrained import PACKAGE, base_folder

log = logging.getLogger(__name__)

BATCH_WAIT_S = 0.005  # after a first request, for others that came at the same time
DEFAULT_TOKENS = 256
LONGEST = 2048  # keys and values of a slot take memory for as many tokens
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass
class Wanted:
    """One reply to generate, and who waits for it."""

    ids: list[int]
    limit: int
    temperature: float
    key: int
    done: asyncio.Future[Generated] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Puts requests that come together into one call of the engine, each into the slot that holds its beginning."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.held: list[list[int]] = [[] for _ in range(engine.slots)]  # the ids that each slot has read or written
        self.used_at = [0] * engine.slots
        self.calls = 0
        self.reused = 0  # requests that were read on from where a slot stood
        self._waiting: asyncio.Queue[Wanted] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "engine")

    async def generate(self, wanted: Wanted) -> Generated:
        self._waiting.put_nowait(wanted)
        return await wanted.done

    async def run(self) -> None:
        """Serves until it is cancelled."""
        later: list[Wanted] = []
        while True:
            batch = later or [await self._waiting.get()]
            await asyncio.sleep(BATCH_WAIT_S)
            while not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            batch = [one for one in batch if not one.done.done()]  # nobody waits any longer for the others
            now = [one for one in batch if one.temperature == batch[0].temperature][: self.engine.slots]
            later = [one for one in batch if one not in now]
            if now:
                await self._serve(now)

    async def _serve(self, batch: list[Wanted]) -> None:
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._generate, batch)
        except Exception as error:  # noqa: BLE001 (whoever waits is told, and the next batch starts afresh)
            self._forget()
            for one in batch:
                if not one.done.done():
                    one.done.set_exception(error)
            return
        for one, generated in zip(batch, found, strict=True):
            if not one.done.done():
                one.done.set_result(generated)

    def _generate(self, batch: list[Wanted]) -> list[Generated]:
        self.calls += 1
        slots: list[int] = []
        for one in batch:
            slots.append(self._slot(one.ids, slots))
        new = [one.ids[len(self.held[slot]) :] for one, slot in zip(batch, slots, strict=True)]
        keys = np.array([one.key for one in batch], dtype=np.uint64)
        found = self.engine.reply(slots, new, keys, [one.limit for one in batch], batch[0].temperature)
        for one, slot, generated in zip(batch, slots, found, strict=True):
            self.held[slot] = [*one.ids, *generated.ids]
            self.used_at[slot] = self.calls
        return found

    def _slot(self, ids: list[int], taken: list[int]) -> int:
        """The free slot that holds the longest beginning of `ids`, else the one that was used longest ago, emptied."""
        free = [slot for slot in range(self.engine.slots) if slot not in taken]
        begun = [slot for slot in free if self.held[slot] and len(self.held[slot]) < len(ids) and ids[: len(self.held[slot])] == self.held[slot]]
        if begun:
            self.reused += 1
            return max(begun, key=lambda slot: len(self.held[slot]))
        oldest = min(free, key=lambda slot: self.used_at[slot])
        self.engine.clear([oldest])
        self.held[oldest] = []
        return oldest

    def _forget(self) -> None:
        self.engine.reset()
        self.held = [[] for _ in range(self.engine.slots)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str
    temperature: float = Field(default=1.0, ge=0, le=100, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    n: Literal[1] = 1
    stream: Literal[False] = False
    user: str | None = None


class CompletionRequest(_Asked):
    prompt: str | list[int]
    max_tokens: int = Field(default=DEFAULT_TOKENS, ge=1)
    logprobs: Literal[0, 1] | None = None
    return_token_ids: bool = False
    stop_token_ids: list[int] | None = None
    add_special_tokens: Literal[False] = False


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(_Asked):
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] | None = None


def create_app(engine: Engine, template: Template, *, name: str, context: int, key: str | None = None, only_here: bool = True) -> FastAPI:
    """The server as an ASGI app. `context` is the most tokens of prompt and reply together, as the engine was made for.

    `only_here` refuses requests to any name but this machine's own, or a page in a browser could reach the server by renaming itself.
    """
    batcher = Batcher(engine)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(batcher.run())
        yield
        worker.cancel()

    def allowed(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key is not None and not hmac.compare_digest(given.encode(), key.encode()):
            raise HTTPException(401, "this server wants another key")

    app = FastAPI(title="Ratchet", lifespan=lifespan, dependencies=[Depends(allowed)], openapi_url=None)
    app.state.batcher = batcher
    if only_here:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK))
    app.add_exception_handler(HTTPException, _problem)
    app.add_exception_handler(RequestValidationError, _not_understood)

    async def generate(asked: _Asked, ids: list[int], limit: int) -> Generated:
        if asked.model != name:
            raise HTTPException(404, f"no model {asked.model!r} here; there is {name!r}")
        if not ids or not all(0 <= one < len(template.tokenizer) for one in ids):
            raise HTTPException(400, f"the prompt is empty, or holds ids that are not below {len(template.tokenizer)}")
        if len(ids) + limit > context:
            raise HTTPException(400, f"{len(ids)} tokens and a reply of {limit} exceed this model's maximum context length of {context}")
        seed = secrets.randbits(64) if asked.seed is None else asked.seed
        try:
            return await batcher.generate(Wanted(ids, limit, asked.temperature, seed))
        except Exception as error:  # uncaught, it would also close the connection of the client
            log.exception("the engine failed")
            raise HTTPException(500, f"the engine failed: {type(error).__name__}; the server's log has more") from None

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "ratchet", "max_model_len": context}]}

    @app.post("/v1/completions")
    async def completions(asked: CompletionRequest) -> dict[str, Any]:
        if asked.stop_token_ids is not None and set(asked.stop_token_ids) != set(template.ends):
            raise HTTPException(400, f"stop_token_ids: this model stops at {list(template.ends)}")
        ids = encode(template, asked.prompt) if isinstance(asked.prompt, str) else asked.prompt
        found = await generate(asked, ids, asked.max_tokens)
        choice: dict[str, Any] = {"text": template.decode_replies([found.ids])[0]}
        if asked.logprobs is not None:
            choice["logprobs"] = {"tokens": template.tokenizer.convert_ids_to_tokens(found.ids), "token_logprobs": found.logprobs}
        if asked.return_token_ids:
            choice |= {"token_ids": found.ids, "prompt_token_ids": ids, "entropy": found.entropy}
        return _response("text_completion", name, template, choice, ids, found)

    @app.post("/v1/chat/completions")
    async def chat(asked: ChatRequest) -> dict[str, Any]:
        ids = chat_ids(template, [message.model_dump() for message in asked.messages], asked.tools)
        found = await generate(asked, ids, asked.max_completion_tokens or asked.max_tokens or DEFAULT_TOKENS)
        message = {"role": "assistant", "content": template.decode_replies([found.ids])[0]}
        return _response("chat.completion", name, template, {"message": message}, ids, found)

    return app


def encode(template: Template, text: str) -> list[int]:
    """Ids of a text in which special tokens stand as such."""
    backend = template.tokenizer._tokenizer
    backend.encode_special_tokens = False
    return backend.encode(text, add_special_tokens=False).ids


def chat_ids(template: Template, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
    """Ids of a conversation with the opening of the next reply: by the model's chat template, or by Ratchet's pieces where it has
    none, a system message then at the head of the first observation. Raises HTTPException for what cannot be rendered."""
    if template.tokenizer.chat_template:
        from jinja2 import TemplateError

        try:
            text = template.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError) as error:
            raise HTTPException(400, f"the model's chat template refuses these messages ({error})") from None
        return encode(template, text)
    if tools is not None:
        raise HTTPException(400, "tools: this model has no chat template that could show them")
    instruction = messages[0]["content"] + "\n\n" if messages[0]["role"] == "system" else ""
    turns = messages[bool(instruction) :]
    if [turn["role"] for turn in turns] != ["user", "assistant"] * (len(turns) // 2) + ["user"]:
        raise HTTPException(400, "messages: user and assistant have to alternate, from user to user")
    observations = [instruction * (place == 0) + turn["content"] for place, turn in enumerate(turns[::2])]
    prompts = template.observations_ids(observations, [place == 0 for place in range(len(observations))])
    replies = template.replies_ids([turn["content"] for turn in turns[1::2]])
    return [one for prompt, reply in zip(prompts, [*replies, []], strict=True) for one in (*prompt, *reply)]


def _response(kind: str, name: str, template: Template, choice: dict[str, Any], ids: list[int], found: Generated) -> dict[str, Any]:
    reason = "stop" if found.ids[-1] in template.ends else "length"
    usage = {"prompt_tokens": len(ids), "completion_tokens": len(found.ids), "total_tokens": len(ids) + len(found.ids)}
    choices = [{"index": 0, **choice, "finish_reason": reason}]
    return {"id": f"{kind}-{secrets.token_hex(8)}", "object": kind, "created": int(time.time()), "model": name, "choices": choices, "usage": usage}


async def _problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, str(error.detail))


async def _not_understood(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _error(400, f"{'.'.join(str(part) for part in first['loc'][1:])}: {first['msg']}")


def _error(status: int, message: str) -> JSONResponse:
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


def load_app(folder: Path, *, name: str, slots: int, context: int | None, key: str | None, only_here: bool) -> FastAPI:
    """The server of a model folder. Raises RatchetError where it cannot be loaded."""
    from ratchet.engines.local import LocalEngine
    from ratchet.episodes.template import load_template
    from ratchet.models.build import load_model

    template, model = load_template(folder), load_model(folder)
    most = int(model.config.max_position_embeddings)
    if context is not None and not 2 <= context <= most:
        raise RatchetError(f"--context {context}: {folder} was made for 2 to {most} tokens; take a number of these")
    length = context or min(most, LONGEST)
    engine = LocalEngine(model, slots=slots, length=length, end=template.ends, pad=template.pad)
    return create_app(engine, template, name=name, context=length, key=key, only_here=only_here)


def main() -> None:
    """The command line. Exits with 2 and one line on input that cannot work."""
    parser = argparse.ArgumentParser(prog="python -m ratchet.engines.server", description="Serves a model with OpenAI's API.")
    parser.add_argument("model", help="model folder in Hugging Face's layout, or package:NAME, an installed one with a GGUF")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; any but this machine's own needs --key-env")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--name", help="what the model is called; by default the name of its folder or package")
    parser.add_argument("--slots", type=int, default=8, help="episodes whose keys and values are kept, and replies generated at once")
    parser.add_argument("--context", type=int, help=f"most tokens of prompt and reply together; by default the model's, up to {LONGEST}")
    parser.add_argument("--key-env", help="environment variable that holds the key which clients have to send; by default none is asked for")
    given = parser.parse_args()
    name = given.name or Path(given.model.removeprefix(PACKAGE)).resolve().name
    try:
        key = _key(given.key_env, given.host)
        is_here = given.host in LOOPBACK
        folder = base_folder(given.model, Path(".ratchet", "served", name))
        app = load_app(folder, name=name, slots=given.slots, context=given.context, key=key, only_here=is_here)
    except RatchetError as error:
        print(f"server: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(f"serving {name} at http://{given.host}:{given.port}/v1", flush=True)
    uvicorn.run(app, host=given.host, port=given.port, log_level="warning", access_log=False)


def _key(variable: str | None, host: str) -> str | None:
    if variable is None:
        if host not in LOOPBACK:
            raise RatchetError(f"--host {host}: other machines could use this server; name the variable of a key with --key-env")
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise RatchetError(f"--key-env {variable}: is not set; put the key there that clients have to send")
    return value


if __name__ == "__main__":
    main()
