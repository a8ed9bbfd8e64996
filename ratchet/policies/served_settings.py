"""Settings of models behind a server. They say where the key is, never what it is: params.yaml is read and kept by many."""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, model_validator

from ratchet.section import Section

VERSION = "served:"  # begins the version of a served model: what its weights are only its server knows
SECRET = "RATCHET_SECRET_"  # begins the variable in which the flow hands a Prefect Secret to a stage
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  # what Prefect allows as the name of a block


class Served(Section):
    """A model behind an OpenAI-compatible server. Only `url` and `model` have to be given."""

    url: str = Field(description="address of the server's API, for instance https://api.openai.com/v1")
    model: str = Field(min_length=1, description="the model, as the server names it")
    api: Literal["chat", "completions"] = Field(default="chat", description="chat sends messages, completions sends token ids")
    tokenizer: str | None = Field(default=None, description="folder of the model's tokenizer; completions needs it, chat has no use for it")
    key_env: str | None = Field(default=None, description="environment variable that holds the key; null = no key, or key_secret")
    key_secret: str | None = Field(default=None, description="Prefect Secret block that holds the key; null = no key, or key_env")
    timeout_s: float = Field(default=60.0, gt=0, le=3600, description="seconds that one request may take in all")
    retries: int = Field(default=4, ge=0, le=20, description="further requests after one that failed; then its action is invalid")
    backoff_s: float = Field(default=1.0, ge=0, le=60, description="seconds before the first retry; each further one waits twice as long")
    concurrency: int = Field(default=8, ge=1, le=256, description="requests under way at once")
    requests_per_minute: int | None = Field(default=None, ge=1, description="most requests a minute, evenly spread; null = no limit")
    max_tokens: int | None = Field(default=None, ge=1, description="most tokens of one reply; null = env.max_reply_tokens")
    temperature: float | None = Field(default=None, ge=0, le=10, description="sampling temperature; null = that of the stage")
    instruction: str | None = Field(default=None, description="what a chat model is told before the format of replies; \"\" = no system message")
    extra: dict[str, JsonValue] = Field(default_factory=dict, description="further fields of each request; null leaves out one that is sent by default")

    @model_validator(mode="after")
    def _where_and_how(self) -> Served:
        _check_url(self.url)
        if self.api == "completions" and self.tokenizer is None:
            raise ValueError("tokenizer: completions sends token ids; give the folder of the model's tokenizer, or take api=chat")
        if self.api == "chat" and self.tokenizer is not None:
            raise ValueError("tokenizer: chat sends messages and never uses it; set it to null, or take api=completions")
        # The texts below leave the value out: it may be a key that was put in the wrong place.
        if self.key_env is not None and not _VARIABLE.fullmatch(self.key_env):
            raise ValueError("key_env: not the name of an environment variable; write the name of one that holds the key, never the key")
        if self.key_secret is not None and not _SECRET.fullmatch(self.key_secret):
            raise ValueError("key_secret: not the name of a Prefect block (lower-case letters, digits, -); write its name, never the key")
        if self.key_env is not None and self.key_secret is not None:
            raise ValueError("key_secret: stands beside key_env; set one of the two to null")
        return self

    @property
    def key_variable(self) -> str | None:
        """The environment variable that a stage reads the key from: `key_env`, or where the flow puts what `key_secret` holds."""
        return secret_variable(self.key_secret) if self.key_secret is not None else self.key_env


def secret_variable(block: str) -> str:
    """Where the flow hands the value of a Prefect Secret block to a stage."""
    return SECRET + block.upper().replace("-", "_")


def complete(entry: Any) -> Any:
    """The entry with all its keys, in their order; what is no mapping, or unknown, is left for the settings to refuse."""
    if not isinstance(entry, dict):
        return entry
    defaults = {name: field.get_default(call_default_factory=True) for name, field in Served.model_fields.items() if not field.is_required()}
    known = {name: entry.get(name, defaults.get(name)) for name in Served.model_fields if name in entry or name in defaults}
    return known | {name: value for name, value in entry.items() if name not in known}


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("url: not an address; write one such as http://127.0.0.1:8000/v1") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("url: holds more than an address; keys go into a variable that key_env names, further fields into extra")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"url: {url!r} is not an http or https address; write one such as http://127.0.0.1:8000/v1")
