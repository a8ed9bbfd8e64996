"""Recorded episodes as a meter reads them: in its own tokenizer, with the points at which it is asked.

Token in, token out: what a policy of the same tokenizer generated is read as it was generated. Everything else (an expert's words, the
episodes of a model with another tokenizer) is encoded from its text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.episodes.schema import rows_of
from ratchet.episodes.template import Template
from ratchet.learners.batches import lists
from ratchet.meter.labels import Labelled, Target, units, values_of
from ratchet.meter.passes import Ask, Trunk


@dataclass(frozen=True)
class Reading:
    """One episode of T steps. `points` [T]: the last token before each question, −1 where it would not fit the meter's context."""

    episode_id: str
    ids: np.ndarray  # int64 [n]
    points: np.ndarray  # int64 [T]
    tokens: np.ndarray  # int64 [T]: n_t in the meter's tokenizer
    generated: np.ndarray  # int64 [T]: n_t as generated; in the meter's tokenizer where nobody generated tokens

    @property
    def trunk(self) -> Trunk:
        return Trunk(self.ids, tuple(Ask(int(point)) for point in self.points if point >= 0))

    @property
    def too_long(self) -> int:
        """Prefixes that are not asked because they do not fit."""
        return int((self.points < 0).sum())


def read_episodes(template: Template, alike: Collection[str], episodes: Sequence[dict[str, Any]], steps: pa.Table, *, behind: int, room: int) -> list[Reading]:
    """The rows `episodes`, which have steps, with their `steps` (sorted by id and t).

    `alike` are tokenizers whose ids mean the same to the meter; a question goes on `behind` tokens before the end of a prompt, and
    `room` is the last point behind which a question with its answer still fits.
    """
    places = rows_of(steps["episode_id"].to_pylist())
    kinds = {row["episode_id"]: row["tokenizer_id"] in alike for row in episodes}
    own = _own_ids(steps) if any(kinds.values()) else None
    foreign = [row["episode_id"] for row in episodes if not kinds[row["episode_id"]] or not _recorded(steps, places[row["episode_id"]])]
    encoded = _encoded(template, steps, [places[one] for one in foreign])
    others = dict(zip(foreign, encoded, strict=True))
    counts = np.array([0 if one is None else one for one in pc.list_value_length(steps["reply_ids"]).to_pylist()], np.int64)
    out = []
    for row in episodes:
        name = row["episode_id"]
        span = places[name]
        prompts, replies = others[name] if name in others else (own[0][span.start : span.stop], own[1][span.start : span.stop])  # type: ignore[index]
        read, wrote = np.array([len(one) for one in prompts]), np.array([len(one) for one in replies])
        points = np.cumsum(read + wrote) - wrote - 1 - behind
        ids = np.concatenate([np.asarray(part, np.int64) for pair in zip(prompts, replies, strict=True) for part in pair])
        recorded = counts[span.start : span.stop]
        generated = recorded if recorded.any() else wrote
        out.append(Reading(name, ids, np.where(points <= room, points, -1), wrote.astype(np.int64), generated.astype(np.int64)))
    return out


def labelled(reading: Reading, row: dict[str, Any], target: Target, factor: float = 1.0) -> Labelled:
    """What a meter of `target` learns from an episode; `factor` scales its tokens (`labels.verbosity`)."""
    tokens = reading.tokens * factor
    values = values_of(target, tokens, solved=bool(row["solved"]), score=float(row["score"]))
    return Labelled(
        reading.episode_id, row["task_id"], row["policy_id"], bool(row["solved"]), bool(row["truncated"]), float(row["score"]),
        units(target, tokens), reading.generated, values,
    )  # fmt: skip


def _own_ids(steps: pa.Table) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(prompt, reply) of each row as recorded."""
    found = []
    for name in ("prompt_ids", "reply_ids"):
        flat, offsets = lists(steps, name)
        found.append([flat[start:stop] for start, stop in pairwise(offsets)])
    return found[0], found[1]


def _recorded(steps: pa.Table, span: range) -> bool:
    """Whether the rows hold token ids."""
    return steps["tokens_from"][span.start].as_py() is not None


def _encoded(template: Template, steps: pa.Table, spans: Sequence[range]) -> list[tuple[list[list[int]], list[list[int]]]]:
    """(prompts, replies) of each episode from its texts."""
    rows = [row for span in spans for row in span]
    if not rows:
        return []
    chosen = steps.select(["observation", "reply"]).take(pa.array(rows))
    first = [row == span.start for span in spans for row in span]
    prompts = template.observations_ids(chosen["observation"].to_pylist(), first)
    replies = template.replies_ids(chosen["reply"].to_pylist())
    ends = np.cumsum([len(span) for span in spans])
    return [(prompts[end - len(span) : end], replies[end - len(span) : end]) for span, end in zip(spans, ends, strict=True)]
