"""The critic as a mere reranker (an ablation of methods §5): several replies are sampled, and the one with the highest Q is taken.

Each candidate has a row of the engine of its own, which reads the whole history again: simple, and as dear as it sounds. What is played
this way is a version of its own: weights, `rerank.json` and the folder `critic`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratchet.critic.data import packed_pass
from ratchet.critic.model import Critic, card_of_critic, load_critic
from ratchet.envs.base import Task, Turn
from ratchet.files import read_json, write_json
from ratchet.learners.batches import filled
from ratchet.models.build import RERANK
from ratchet.policies.base import Reply
from ratchet.policies.language_model import LanguageModelPolicy, ModelSpec, reply_of
from ratchet.rollout.noise import episode_key

FOLDER = "critic"
PASS = 8192  # tokens that the critic reads at once


def write_reranker(critic: Path, folder: Path, *, candidates: int, temperature: float) -> None:
    """Lays the critic of the folder `critic` beside a version's weights."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(critic, folder / FOLDER, dirs_exist_ok=True)
    write_json(folder / RERANK, {"candidates": candidates, "temperature": temperature, "critic": card_of_critic(critic)["version"]})


def reranking_policy(spec: ModelSpec) -> RerankingPolicy:
    """The version in `spec.folder`; it plays in this process."""
    from ratchet.episodes.template import load_template
    from ratchet.models.build import load_model

    told = read_json(spec.folder / RERANK)
    wide = replace(spec, rows=spec.rows * told["candidates"], temperature=told["temperature"])
    policy = wide.made(RerankingPolicy, load_model(spec.folder, light=True), load_template(spec.folder, spec.action_format))
    policy.spec = None
    policy.critic, policy.candidates = load_critic(spec.folder / FOLDER).eval(), told["candidates"]
    return policy


class RerankingPolicy(LanguageModelPolicy):
    """Of `candidates` replies the one of which the critic expects most; of equals the likeliest."""

    critic: Critic
    candidates: int
    twin: Any = None  # a second shard would need as many rows again

    def begin(self, row: int, task: Task, turn: Turn, episode_id: str, seed: int) -> None:
        super().begin(row, task, turn, episode_id, seed)
        self._history: dict[int, list[int]] = getattr(self, "_history", {})
        self._noise: dict[int, list[np.uint64]] = getattr(self, "_noise", {})
        self._history[row] = []
        # the first candidate is what the actor alone would have said
        self._noise[row] = [self._key[row], *(episode_key(seed, episode_id, f"candidate {j}") for j in range(1, self.candidates))]

    def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
        new = self.template.observations_ids([turn.observation for turn in turns], [not self._history[row] for row in rows])
        limits = [
            min(self.max_reply_tokens, self.max_tokens - len(self._history[row]) - len(ids)) for row, ids in zip(rows, new, strict=True)
        ]
        playing = [index for index, limit in enumerate(limits) if limit > 0]
        replies: list[Reply | None] = [None] * len(rows)
        if not playing:
            return replies
        read = {index: [*self._history[rows[index]], *new[index]] for index in playing}
        places = [(index, j) for index in playing for j in range(self.candidates)]
        slots = [rows[index] * self.candidates + j for index, j in places]
        self.engine.clear(slots)
        keys = np.array([self._noise[rows[index]][j] for index, j in places], dtype=np.uint64)
        written = self.engine.reply(slots, [read[index] for index, _ in places], keys, [limits[index] for index, _ in places], float(self.temperature))
        worth = self._worth([[*read[index], *one.ids] for (index, _), one in zip(places, written, strict=True)])
        for number, index in enumerate(playing):
            span = range(number * self.candidates, (number + 1) * self.candidates)
            best = written[max(span, key=lambda at: (worth[at], sum(written[at].logprobs), -at))]
            self._history[rows[index]] = [*read[index], *best.ids]
            [text] = self.template.decode_replies([best.ids])
            replies[index] = reply_of(self.template, best, text, new[index])
        return replies

    @torch.inference_mode()
    def _worth(self, sequences: Sequence[list[int]]) -> np.ndarray:
        """Q at the last token of each, float64."""
        device = next(self.critic.parameters()).device
        out = []
        for group in filled([np.array(one, np.int64) for one in sequences], PASS, len):
            points = [np.array([len(one) - 1]) for one in group]
            out.append(self.critic(packed_pass(group, points, points, device)).q.amin(1).double().cpu().numpy())
        return np.concatenate(out)
