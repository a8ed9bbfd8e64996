"""A language model that acts: turns in, sampled replies out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ratchet.engines.base import Engine, Generated
from ratchet.envs.base import Task, Turn
from ratchet.episodes.template import Template
from ratchet.policies.base import Reply
from ratchet.rollout.noise import episode_key

P = TypeVar("P", bound="LanguageModelPolicy")


@dataclass(frozen=True)
class ModelSpec:
    """What a policy is built of, in whatever process. `weights`, where given, are laid over those in `folder`."""

    folder: Path
    policy_id: str
    version: str
    action_format: str
    rows: int
    temperature: float
    max_tokens: int
    max_reply_tokens: int
    weights: Path | None = None

    def policy(self, model: Any = None) -> LanguageModelPolicy:
        """`model` takes the place of the one in `folder`, whose tokenizer is used all the same."""
        from ratchet.episodes.template import load_template
        from ratchet.models.build import lay_weights, load_model

        template = load_template(self.folder, self.action_format)
        if model is None:
            model = load_model(self.folder, light=True)
            if self.weights is not None:
                lay_weights(self.weights, model)
        return self.made(LanguageModelPolicy, model, template)

    def made(self, kind: type[P], model: Any, template: Template) -> P:
        """A policy of this kind that plays `model`."""
        from ratchet.engines.local import LocalEngine

        policy = kind(
            LocalEngine(model, slots=self.rows, length=self.max_tokens, end=template.ends, pad=template.pad),
            template,
            policy_id=self.policy_id,
            version=self.version,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            max_reply_tokens=self.max_reply_tokens,
        )
        policy.spec = self
        return policy


def reply_of(template: Template, one: Generated, text: str, prompt: list[int]) -> Reply:
    """What was generated behind the new tokens `prompt`, and decodes as `text`."""
    # A reply that was cut before its end holds no action: what stands there is the beginning of one.
    action, format_ok = template.format.parse(text) if one.ids[-1] in template.ends else ("", False)
    return Reply(text, action, format_ok, prompt, one.ids, one.logprobs, one.entropy, "generated")


class LanguageModelPolicy:
    """Plays through an engine; sees observations only, never the admissible commands."""

    needs_admissible = False
    spec: ModelSpec | None = None  # where it is known, other processes can play the policy too
    is_learning = False  # its weights are no longer those of the spec's folder

    def __init__(
        self,
        engine: Engine,
        template: Template,
        *,
        policy_id: str,
        version: str,
        temperature: float,
        max_tokens: int,
        max_reply_tokens: int,
    ) -> None:
        """`max_tokens` bounds the whole episode, observations included; `max_reply_tokens` one reply."""
        self.engine, self.template = engine, template
        self.policy_id, self.version, self.tokenizer_id = policy_id, version, template.tokenizer_id
        self.temperature = temperature
        self.max_tokens, self.max_reply_tokens = max_tokens, max_reply_tokens
        self._used: dict[int, int] = {}
        self._key: dict[int, np.uint64] = {}

    def twin(self) -> LanguageModelPolicy:
        """The same policy on rows of its own, for a second shard: the weights are shared, the cache is not."""
        return LanguageModelPolicy(
            self.engine.twin(),
            self.template,
            policy_id=self.policy_id,
            version=self.version,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            max_reply_tokens=self.max_reply_tokens,
        )

    def start(self) -> None:
        self.engine.reset()

    def begin(self, row: int, task: Task, turn: Turn, episode_id: str, seed: int) -> None:
        self.engine.clear([row])
        self._used[row] = 0
        self._key[row] = episode_key(seed, episode_id)

    def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
        new = self.template.observations_ids([turn.observation for turn in turns], [self._used[row] == 0 for row in rows])
        limits = [min(self.max_reply_tokens, self.max_tokens - self._used[row] - len(ids)) for row, ids in zip(rows, new, strict=True)]
        playing = [index for index, limit in enumerate(limits) if limit > 0]
        replies: list[Reply | None] = [None] * len(rows)
        if not playing:
            return replies
        written = self.engine.reply(
            [rows[index] for index in playing],
            [new[index] for index in playing],
            np.array([self._key[rows[index]] for index in playing], dtype=np.uint64),
            [limits[index] for index in playing],
            float(self.temperature),
        )
        texts = self.template.decode_replies([one.ids for one in written])
        for index, one, text in zip(playing, written, texts, strict=True):
            replies[index] = reply_of(self.template, one, text, new[index])
            self._used[rows[index]] += len(new[index]) + len(one.ids)
        return replies
