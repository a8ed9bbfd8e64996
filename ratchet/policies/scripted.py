"""Scripted policies (experts, random walkers) as batch policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.envs.base import Task, Turn
from ratchet.episodes.formats import format_reply
from ratchet.episodes.template import Template
from ratchet.policies.base import Reply

SLIP = "+slip"  # ends the `policy_version` of a step that its player meant wrong; such a step is never imitated


def slips_of(steps: pa.Table) -> dict[str, list[int]]:
    """Of each episode that has any, the steps that its player meant wrong."""
    chosen, out = steps.filter(pc.ends_with(steps["policy_version"], SLIP)), dict[str, list[int]]()
    for episode_id, t in zip(chosen["episode_id"].to_pylist(), chosen["t"].to_pylist(), strict=True):
        out.setdefault(episode_id, []).append(t)
    return out


class Player(Protocol):
    """One episode of a scripted policy."""

    def reset(self, task: Task, turn: Turn) -> None: ...

    def act(self, turn: Turn) -> tuple[str, str]:
        """(`thought`, `action`)."""
        ...


class ScriptedPolicy:
    """One `Player` a row, made by `make(seed, episode_id)`. With a template its texts get ids, `tokens_from` = `encoded`."""

    temperature = None

    def __init__(
        self,
        make: Callable[[int, str], Player],
        *,
        policy_id: str,
        version: str,
        template: Template | None = None,
        action_format: str = "plain",
        needs_admissible: bool = True,
    ) -> None:
        self.needs_admissible = needs_admissible
        self.make, self.policy_id, self.version, self.template = make, policy_id, version, template
        self.action_format = action_format
        self.tokenizer_id = template.tokenizer_id if template else None
        self._players: dict[int, Player] = {}
        self._first: dict[int, bool] = {}

    def start(self) -> None:
        """Rows share nothing."""

    def begin(self, row: int, task: Task, turn: Turn, episode_id: str, seed: int) -> None:
        self._players[row] = self.make(seed, episode_id)
        self._players[row].reset(task, turn)
        self._first[row] = True

    def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
        said = [self._players[row].act(turn) for row, turn in zip(rows, turns, strict=True)]
        replies = [Reply(format_reply(thought, action, self.action_format), action, True) for thought, action in said]
        for row, reply in zip(rows, replies, strict=True):
            if getattr(self._players[row], "slipped", False):
                reply.version = self.version + SLIP
        if self.template is not None:
            prompts = self.template.observations_ids([turn.observation for turn in turns], [self._first[row] for row in rows])
            answers = self.template.replies_ids([reply.text for reply in replies])
            for reply, prompt, answer in zip(replies, prompts, answers, strict=True):
                reply.prompt_ids, reply.reply_ids, reply.tokens_from = prompt, answer, "encoded"
        for row in rows:
            self._first[row] = False
        return list(replies)
