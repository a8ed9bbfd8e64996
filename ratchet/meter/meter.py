"""A trained meter as a folder: a causal LM with its tokenizer, `meter.json` beside it, and `head.safetensors` where it has a head.

It is frozen while an actor trains, and knows nothing of that actor: it reads episodes of any policy in its own tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ratchet.credit.meter import Estimates
from ratchet.episodes.template import Template, load_template
from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.meter.answer import Grammar
from ratchet.meter.head import Head, ask_head, load_head, width_of
from ratchet.meter.labels import Target, units
from ratchet.meter.passes import Trunk
from ratchet.meter.read import Reading, read_episodes
from ratchet.meter.written import Answers, ask_written, places_of
from ratchet.rollout.noise import episode_key, uniforms

CARD = "meter.json"
Form = Literal["written", "head"]
LONGEST_ANSWER = 24  # tokens of an answer that are kept free behind a question


@dataclass
class Counts:
    """What became of a batch of questions."""

    asked: int = 0
    too_long: int = 0  # prefixes longer than the context: not asked, never cut
    free: int = 0  # written freely
    unparsable: int = 0  # of these

    def metrics(self) -> dict[str, float]:
        return {
            "meter_asked": self.asked,
            "meter_too_long": self.too_long,
            "meter_free": self.free,
            "meter_unparsable_share": self.unparsable / self.free if self.free else 0.0,
        }


@dataclass
class Meter:
    """`temperature` calibrates p̂; `limit` is C in the unit of `target`; `factors` scale a policy's tokens."""

    model: Any
    template: Template
    grammar: Grammar
    form: Form
    target: Target
    head: Head | None = None
    temperature: float = 1.0
    limit: float = 1.0
    factors: dict[str, float] = field(default_factory=dict)
    alike: frozenset[str] = frozenset()
    card: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Meter:
        """Raises RatchetError for a folder that holds no meter."""
        from ratchet.models.build import load_model

        card = card_of(folder)
        template = load_template(folder, card["action_format"])
        model = load_model(folder, light=True).eval()
        head = load_head(folder, width_of(model)) if card["form"] == "head" else None
        if head is not None:
            head = head.to(next(model.parameters()).device)
        return cls(
            model,
            template,
            Grammar.of(template),
            card["form"],
            card["target"],
            head,
            float(card["temperature"]),
            float(card["limit"]),
            {name: float(value) for name, value in card["factors"].items()},
            frozenset([template.tokenizer_id, *card["alike"]]),
            card,
        )

    @property
    def context(self) -> int:
        return int(self.model.config.get_text_config().max_position_embeddings)

    @property
    def room(self) -> int:
        """The last token of a prefix behind which a question with its answer still fits."""
        return self.context - 1 - len(self.grammar.question) - (LONGEST_ANSWER if self.form == "written" else 0)

    def read(self, rows: Sequence[dict[str, Any]], steps: pa.Table) -> list[Reading]:
        return read_episodes(self.template, self.alike, rows, steps, behind=self.grammar.behind, room=self.room)

    def answers(self, trunks: Sequence[Trunk], *, free: np.ndarray | None = None, all_remaining: bool = False) -> Answers:
        if self.form == "head":
            assert self.head is not None
            return ask_head(self.model, self.head, self.grammar, trunks)
        return ask_written(self.model, self.template, self.grammar, trunks, free=free, all_remaining=all_remaining)

    def probability(self, logit: np.ndarray) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-np.clip(logit / self.temperature, -60, 60)))

    def estimate(
        self, rows: Sequence[dict[str, Any]], readings: Sequence[Reading], *, soft: bool = False, free_share: float = 0.0, seed: int = 0
    ) -> tuple[list[Estimates], Counts]:
        """What it says before every action of the episodes `rows`; a share of the questions, drawn by seed and episode, is written freely."""
        trunks = [one.trunk for one in readings]
        free = _drawn(readings, free_share, seed) if self.form == "written" and free_share > 0 else None
        found = self.answers(trunks, free=free, all_remaining=soft)
        p = self.probability(found.logit)
        counts = Counts(len(found.logit), sum(one.too_long for one in readings))
        if free is not None:
            counts.free, counts.unparsable = int(free.sum()), int((~found.parsed[free]).sum())
        out = []
        for row, reading, where in zip(rows, readings, places_of(trunks), strict=True):
            asked = reading.points >= 0
            own = Estimates(*(np.full(len(asked), value) for value in (False, 0.0, np.nan, False)), tokens=self._units(row, reading))
            for name, values in (("completable", found.completable), ("p", p), ("remaining", found.remaining), ("parsed", found.parsed)):
                getattr(own, name)[asked] = values[where]
            out.append(own)
        return out, counts

    def _units(self, row: dict[str, Any], reading: Reading) -> np.ndarray:
        return units(self.target, reading.tokens * self.factors.get(row["policy_id"], 1.0))


def _drawn(readings: Sequence[Reading], share: float, seed: int) -> np.ndarray:
    """bool [Q]."""
    drawn = [uniforms(episode_key(seed, one.episode_id, "meter"), np.flatnonzero(one.points >= 0)) < share for one in readings]
    return np.concatenate(drawn) if drawn else np.zeros(0, bool)


def card_of(folder: Path) -> dict[str, Any]:
    """`meter.json`. Raises RatchetError where it is not there."""
    if not (folder / CARD).is_file():
        raise RatchetError(f"{folder}: holds no meter ({CARD} is missing); give the folder models/rounds/K/meter of a run that fitted one")
    return read_json(folder / CARD)


def check_environment(card: dict[str, Any], env: str, transfer: bool, where: str) -> None:
    """Raises RatchetError for a meter of another environment, unless it is meant."""
    if card["env"] != env and not transfer:
        raise RatchetError(
            f"{where}: this meter was fitted on {card['env']}, and env.name is {env}; set evolve_online.meter.transfer to true to use it all "
            "the same (it reads texts in its own tokenizer), or fit one here"
        )
