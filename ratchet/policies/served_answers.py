"""What an OpenAI-compatible server answers, taken apart and checked."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

HIGHEST_LOGPROB = 1e-5  # rounding may lift one above 0 by this much


class Nonsense(Exception):
    """An answer that is not what was asked for; the text says why, in a few words."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply. `ids`, `logprobs` and `entropy` are those that the server gave, empty where it gives none.

    `whole`: the model ended it itself; otherwise it was cut. Token counts are the server's own, 0 where it does not say.
    """

    text: str
    whole: bool
    ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    entropy: list[float] = dataclasses.field(default_factory=list)
    prompt_tokens: int = 0
    reply_tokens: int = 0
    attempts: int = 1

    def after(self, attempts: int) -> Answer:
        return dataclasses.replace(self, attempts=attempts)

    def with_text(self, text: str) -> Answer:
        return dataclasses.replace(self, text=text)


class _Usage(BaseModel):
    prompt_tokens: int | None = Field(default=None, ge=0, lt=2**31)
    completion_tokens: int | None = Field(default=None, ge=0, lt=2**31)


class _Function(BaseModel):
    name: str
    arguments: str


class _ToolCall(BaseModel):
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _ChatChoice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Logprobs(BaseModel):
    token_logprobs: list[float | None] | None = None


class _TextChoice(BaseModel):
    text: str
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    entropy: list[float] | None = None  # our own server's


class _Chat(BaseModel):
    choices: list[_ChatChoice] = Field(min_length=1)
    usage: _Usage | None = None


class _Completion(BaseModel):
    choices: list[_TextChoice] = Field(min_length=1)
    usage: _Usage | None = None


def read_answer(api: Literal["chat", "completions"], raw: bytes, limit: int, vocabulary: int = 0) -> Answer:
    """The first choice of an answer. `limit`: tokens that were asked for; ids have to lie below `vocabulary`. Raises Nonsense."""
    try:
        found = _Chat.model_validate_json(raw) if api == "chat" else _Completion.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Nonsense(f"an answer that is no {api} completion ({f'{place}: ' if place else ''}{first['msg'].lower()})") from None
    usage = found.usage or _Usage()
    counts = {"prompt_tokens": usage.prompt_tokens or 0, "reply_tokens": usage.completion_tokens or 0}
    choice = found.choices[0]
    whole = choice.finish_reason != "length"
    if isinstance(choice, _ChatChoice):
        return Answer(_chat_text(choice.message), whole, **counts)
    return Answer(readable(choice.text), whole, *_tokens(choice, limit, vocabulary), **counts)


def _chat_text(message: _Message) -> str:
    """The content; native tool calls follow it in the text form that the action format `tool` reads."""
    parts = [(message.content or "").strip()]
    for call in message.tool_calls or ():
        parts.append(f'<tool_call>\n{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments}}}\n</tool_call>')
    return readable("\n".join(part for part in parts if part))


def _tokens(choice: _TextChoice, limit: int, vocabulary: int) -> tuple[list[int], list[float], list[float]]:
    """(ids, log-probs, entropy), empty where the server gives ids without log-probs or none at all."""
    ids = choice.token_ids
    logprobs = choice.logprobs.token_logprobs if choice.logprobs is not None else None
    if not ids or logprobs is None:
        return [], [], []
    if len(ids) > limit or not all(0 <= one < vocabulary for one in ids):
        raise Nonsense(f"{len(ids)} token ids, where {limit} below {vocabulary} were asked for")
    known = [one for one in logprobs if one is not None and math.isfinite(one) and one <= HIGHEST_LOGPROB]
    entropy = choice.entropy or []
    if len(known) != len(ids) or (entropy and len(entropy) != len(ids)) or not all(math.isfinite(one) and one >= 0 for one in entropy):
        raise Nonsense(f"{len(ids)} token ids with {len(known)} usable log-probabilities and {len(entropy)} entropies")
    return ids, known, entropy


def readable(text: str) -> str:
    """A text with `\\n` as its only line break and without control characters, which belong into no action and no table."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(letter if (letter >= " " and not "\x7f" <= letter <= "\x9f") or letter in "\n\t" else "\ufffd" for letter in lines)


def said(raw: bytes, field: str = "message") -> str:
    """What the body of an error says, "" where it says nothing that can be read: OpenAI's, vLLM's and FastAPI's forms."""
    try:
        body: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return ""
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, str):
        return error if field == "message" else ""
    found = (error.get(field) or (error.get("detail") if field == "message" else None)) if isinstance(error, dict) else None
    return found if isinstance(found, str) else ""
