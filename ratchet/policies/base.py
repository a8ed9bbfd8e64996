"""Who acts: a policy plays many rows at once and answers each turn with a reply that holds one action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ratchet.envs.base import Task, Turn


@dataclass(slots=True)
class Reply:
    """What a policy wrote at one step.

    `action` is a literal span of `text`. `prompt_ids` are the tokens new to the policy before it wrote, `reply_ids` what
    it wrote; `tokens_from` is `generated` (ids, `logprobs` and `entropy` come from sampling), `encoded` (ids of a text that
    no model wrote) or None (no ids).
    """

    text: str
    action: str
    format_ok: bool
    prompt_ids: list[int] = field(default_factory=list)
    reply_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    tokens_from: str | None = None
    version: str | None = None  # where it is not the policy's own


class Policy(Protocol):
    """`start` comes before a shard, and nothing that was played until then may matter any more; `begin` frees a row for a new episode; `act`
    answers the latest turn of the given rows, None where the token budget is spent (the episode is then truncated)."""

    policy_id: str
    version: str
    tokenizer_id: str | None
    temperature: float | None
    needs_admissible: bool

    def start(self) -> None: ...

    def begin(self, row: int, task: Task, turn: Turn, episode_id: str, seed: int) -> None: ...

    def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]: ...
