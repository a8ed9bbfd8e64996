"""The buffer of a round (methods §5): which episodes critic and offline update learn from, fixed when the round begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.episodes.files import table_of
from ratchet.episodes.schema import rows_of
from ratchet.episodes.template import Template
from ratchet.learners.batches import lists
from ratchet.rollout.noise import episode_key, uniforms

EXPERT, OWN, POOL, FAILURE = "expert", "own", "pool", "failure"
SOURCES = (EXPERT, OWN, POOL, FAILURE)


@dataclass(frozen=True)
class Part:
    """Episodes of one source with their steps."""

    source: str
    episodes: pa.Table
    steps: pa.Table

    def where(self, mask: Sequence[bool] | np.ndarray) -> Part:
        """The episodes of a mask over `episodes`, with their steps."""
        episodes = self.episodes.filter(pa.array(np.asarray(mask, bool)))
        return Part(self.source, episodes, steps_of(self.steps, episodes))


def steps_of(steps: pa.Table, episodes: pa.Table) -> pa.Table:
    return steps.filter(pc.is_in(steps["episode_id"], value_set=episodes["episode_id"].combine_chunks()))


def strongest(part: Part, without: Sequence[str]) -> str | None:
    """The policy of most success among those of `part` that solved anything, `without` apart; the first by name of equals."""
    found: dict[str, list[bool]] = {}
    for row in part.episodes.select(["policy_id", "solved", "error"]).to_pylist():
        if row["error"] is None and row["policy_id"] not in without:
            found.setdefault(row["policy_id"], []).append(row["solved"])
    rates = {name: float(np.mean(solved)) for name, solved in sorted(found.items()) if any(solved)}
    return max(rates, key=lambda name: rates[name]) if rates else None


def with_ids(steps: pa.Table, template: Template) -> pa.Table:
    """Steps in the template's tokens, as somebody would have read and written them who has this tokenizer. Their log-probs are unknown."""
    prompts = template.observations_ids(steps["observation"].to_pylist(), [t == 0 for t in steps["t"].to_pylist()])
    replies = template.replies_ids(steps["reply"].to_pylist())
    none: list[list[float]] = [[]] * steps.num_rows
    for name, values, kind in (
        ("prompt_ids", prompts, pa.list_(pa.int32())),
        ("reply_ids", replies, pa.list_(pa.int32())),
        ("logprobs", none, pa.list_(pa.float32())),
        ("entropy", none, pa.list_(pa.float32())),
        ("tokens_from", ["encoded"] * steps.num_rows, pa.string()),
    ):
        steps = steps.set_column(steps.schema.get_field_index(name), name, pa.array(values, kind))
    return steps


def in_tokens(part: Part, template: Template) -> Part:
    """The part with every episode in the template's tokens: what another tokenizer, or none, wrote is encoded anew."""
    own = np.array([one == template.tokenizer_id for one in part.episodes["tokenizer_id"].to_pylist()], bool)
    if own.all():
        return part
    mine, others = part.where(own), part.where(~own)
    steps = with_ids(others.steps, template)
    wrote = dict(zip(*_sums(steps["episode_id"].to_pylist(), pc.list_value_length(steps["reply_ids"]).to_numpy()), strict=True))
    episodes = others.episodes
    for name, values in (
        ("tokenizer_id", [template.tokenizer_id] * episodes.num_rows),
        ("n_tokens", [int(wrote.get(one, 0)) for one in episodes["episode_id"].to_pylist()]),
    ):
        field = episodes.schema.get_field_index(name)
        episodes = episodes.set_column(field, name, pa.array(values, episodes.schema.field(field).type))
    return Part(part.source, pa.concat_tables([mine.episodes, episodes.cast(mine.episodes.schema)]), pa.concat_tables([mine.steps, steps.cast(mine.steps.schema)]))


def is_held_out(task_id: str, seed: int, share: float) -> bool:
    """Whether a task measures the critic: by its name alone, so it is the same in every round."""
    return float(uniforms(episode_key(seed, task_id, "held out"), 0)) < share


def assemble(parts: Sequence[Part], *, round: int, seed: int, held_out_share: float, max_tokens: int) -> tuple[pa.Table, pa.Table, pa.Table]:
    """(episodes, steps, rows of the kind `buffer`), sorted by id.

    Left out are errors, episodes without a step, those longer than `max_tokens`, and what an earlier part holds already.
    """
    seen: set[str] = set()
    episodes, steps, rows = [], [], list[dict[str, Any]]()
    for part in parts:
        places = rows_of(part.steps["episode_id"].to_pylist())
        sizes = _tokens(part.steps)
        versions = part.steps["policy_version"].to_pylist()
        kept = []
        for row in part.episodes.select(["episode_id", "task_id", "error", "round"]).to_pylist():
            span = places.get(row["episode_id"])
            fits = row["error"] is None and span is not None and int(sizes[span.start : span.stop].sum()) <= max_tokens
            kept.append(fits and row["episode_id"] not in seen)
            if kept[-1] and span is not None:
                seen.add(row["episode_id"])
                rows.append(
                    {
                        "episode_id": row["episode_id"],
                        "source": part.source,
                        "age": 0 if part.source == EXPERT else round - row["round"],
                        "policy_version": versions[span.start],
                        "held_out": is_held_out(row["task_id"], seed, held_out_share),
                    }
                )
        chosen = part.where(kept)
        episodes.append(chosen.episodes)
        steps.append(chosen.steps)
    table = table_of("buffer", rows).sort_by("episode_id")
    empty = [table_of("episodes", [])], [table_of("steps", [])]
    every = pa.concat_tables(episodes or empty[0]).sort_by("episode_id").combine_chunks()
    return every, pa.concat_tables(steps or empty[1]).sort_by([("episode_id", "ascending"), ("t", "ascending")]).combine_chunks(), table


def one_sided(episodes: pa.Table) -> str | None:
    """Why nothing can be learned from these outcomes, or None."""
    outcomes = set(episodes["solved"].to_pylist())
    if not outcomes:
        return "the buffer holds no episode: all ended as errors, or nothing was asked for; raise buffer.experts or buffer.own.tasks"
    if len(outcomes) == 1:
        said = "solved their task" if outcomes == {True} else "failed"
        return f"all {episodes.num_rows} episodes of the buffer {said}, and a critic learns from outcomes that differ; change buffer.experts or buffer.own"
    return None


def by_the_start(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """Ids of what the actor itself played as it was at the round's start. `rows` are of the kind `buffer`."""
    return {row["episode_id"] for row in rows if row["source"] == OWN and row["age"] == 0}


def by_older_policies(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """Ids of what policies before the round's start played; experts have no age."""
    return {row["episode_id"] for row in rows if row["source"] != EXPERT and row["age"] > 0}


def step_ratios(steps: pa.Table, start: pa.Table, limit: float) -> dict[str, np.ndarray]:
    """min(limit, π_start(a_t|h_t) / π_b(a_t|h_t)) of each step by episode, float64; 1 where nobody recorded log-probs.

    `start` holds the log-probs of the round's start (kind `logprobs`), rows as in `steps`.
    """
    then, offsets = lists(steps, "logprobs")
    now, places = lists(start, "logprobs")
    out: dict[str, np.ndarray] = {}
    for name, span in rows_of(steps["episode_id"].to_pylist()).items():
        gaps = []
        for row in span:
            a, b = now[places[row] : places[row + 1]], then[offsets[row] : offsets[row + 1]]
            gaps.append(float(a.astype(np.float64).sum() - b.astype(np.float64).sum()) if len(a) == len(b) else 0.0)
        out[name] = np.exp(np.minimum(gaps, np.log(limit)))
    return out


def _tokens(steps: pa.Table) -> np.ndarray:
    counts = [pc.fill_null(pc.list_value_length(steps[name]), 0).to_numpy() for name in ("prompt_ids", "reply_ids")]
    return counts[0].astype(np.int64) + counts[1]


def _sums(names: Sequence[str], values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Sum of the values of each name."""
    found, inverse = np.unique(np.array(names, str), return_inverse=True)
    return found.tolist(), np.bincount(inverse, values, len(found))
