"""The columns in which drift is looked for, each with its one method, and how they are read from episodes and their sidecars.

A column's values belong to episodes (`owner`), since values of one episode resemble each other: chance is judged by episodes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_OBSERVATIONS = 20_000  # steps whose texts the domain classifier reads, evenly over all
BUCKETS = 128  # of hashed words
MAX_TYPES = 40  # kinds of actions that are told apart; a policy that babbles has thousands
OTHER = "(other)"

Kind = Literal["numbers", "kinds", "rates", "ratios", "texts"]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What a column is and how it is compared. `higher`: whether a higher score means more drift. `least`: a standard deviation below
    which a reference's is not taken, or what never varied would drift without end."""

    kind: Kind
    method: str  # a statistical test of Evidently's, or one of ours that is registered there
    detail: str
    higher: bool = True
    least: float = 0.0


COLUMNS: dict[str, ColumnType] = {
    "episode_length": ColumnType("numbers", "wasserstein", "steps an episode", least=1.0),
    "tokens_per_step": ColumnType("numbers", "wasserstein", "tokens a reply", least=2.0),
    "action_types": ColumnType("kinds", "jensenshannon", "mix of kinds of actions"),
    "invalid_share": ColumnType("rates", "rate_difference", "steps whose action the environment did not take, by stratum"),
    "refusal_share": ColumnType("rates", "rate_difference", "steps without an action, or that do nothing on purpose, by stratum"),
    "success": ColumnType("rates", "rate_difference", "solved episodes, by stratum"),
    "value": ColumnType("numbers", "wasserstein", "the critic's value of a history", least=0.05),
    "meter_cost": ColumnType("numbers", "wasserstein", "the meter's cost of a history, in tokens", least=2.0),
    "credit_weight": ColumnType("numbers", "wasserstein", "weight of a step's advantage", least=0.05),
    "effective_samples": ColumnType("ratios", "effective_samples", "effective share of the round-start policy's steps under the new one", False),
    "kl": ColumnType("ratios", "k3", "KL a step of the round-start policy from the new one, in nats"),
    "observations": ColumnType("texts", "domain_auc", "how well a classifier tells whose observations are whose (AUC)"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """Values [N] and the episode [N] that each belongs to; for rates values are 0 or 1."""

    values: np.ndarray
    owner: np.ndarray


@dataclass(frozen=True)
class Side:
    """One side of a comparison: E episodes without an environment error, and columns of what they did."""

    tasks: np.ndarray  # [E] str
    strata: np.ndarray  # [E] str
    columns: dict[str, Column] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.tasks)


def side_of(episodes: pa.Table, steps: pa.Table, null_action: str | None = None, ratios: Mapping[str, np.ndarray] | None = None) -> Side:
    """What `episodes` and their `steps` did. `null_action` is the benchmark's action that does nothing, if it has one.

    `ratios`: log-ratios [steps] of each episode's actions, new policy against the one that played (tasks/drift.py); they may be of
    other episodes than these, and are counted as episodes of their own.
    """
    episodes = episodes.filter(pc.is_null(episodes["error"]))
    found = pc.index_in(steps["episode_id"], value_set=episodes["episode_id"].combine_chunks())
    steps = steps.filter(pc.is_valid(found))
    owner = pc.drop_null(found).to_numpy().astype(np.int64)
    everyone = np.arange(episodes.num_rows)
    refused = pc.invert(pc.fill_null(steps["format_ok"], False))
    if null_action is not None:
        refused = pc.or_(refused, pc.fill_null(pc.equal(steps["action"], null_action), False))
    columns = {
        "episode_length": Column(numbers(episodes["n_steps"]), everyone),
        "tokens_per_step": Column(pc.fill_null(pc.list_value_length(steps["reply_ids"]), 0).to_numpy().astype(float), owner),
        "action_types": Column(np.asarray(pc.fill_null(steps["action_type"], "").to_pylist(), dtype=object), owner),
        "invalid_share": Column(1.0 - numbers(pc.fill_null(steps["valid"], False)), owner),
        "refusal_share": Column(numbers(refused), owner),
        "success": Column(numbers(pc.fill_null(episodes["solved"], False)), everyone),
        "observations": Column(np.asarray(pc.fill_null(steps["observation"], "").to_pylist(), dtype=object), owner),
    }
    if ratios:
        lengths = [len(one) for one in ratios.values()]
        together = Column(np.concatenate(list(ratios.values())).astype(float), np.repeat(np.arange(len(lengths)), lengths))
        columns |= {"effective_samples": together, "kl": together}
    return Side(_texts(episodes["task_id"]), _texts(episodes["stratum"]), columns)


def credit_columns(sidecars: Mapping[str, pa.Table], limit: int = 10_000) -> dict[str, Column]:
    """Columns of the credit's sidecars that are there, evenly thinned to `limit` steps: `meter` and `critic` of the online rounds
    (cost, value, weight), and `buffer`, the critic's of the buffer. The meter's weights and the online values go first."""
    found: dict[str, Column] = {}
    for name, table, source in (
        ("meter_cost", "meter", "cost"),
        ("value", "buffer", "value"),
        ("value", "critic", "value"),
        ("credit_weight", "critic", "weight"),
        ("credit_weight", "meter", "weight"),
    ):
        if table in sidecars and source in sidecars[table].column_names:
            found[name] = _thinned(sidecars[table], source, limit)
    return {name: column for name, column in found.items() if len(column.values)}


def _thinned(table: pa.Table, source: str, limit: int) -> Column:
    every = max(1, -(-table.num_rows // limit))
    table = table.take(np.arange(0, table.num_rows, every))
    values = numbers(table[source])
    owner = table["episode_id"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    known = np.isfinite(values)
    return Column(values[known], owner[known])


def common_types(reference: np.ndarray, current: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kinds of actions with all but the most frequent ones (by name where equally so) told as one."""
    names, codes = np.unique(np.concatenate([reference, current]).astype(str), return_inverse=True)
    if len(names) > MAX_TYPES:
        counts = np.bincount(codes)
        kept = set(sorted(range(len(names)), key=lambda i: (-counts[i], names[i]))[: MAX_TYPES - 1])
        names = np.array([name if i in kept else OTHER for i, name in enumerate(names)])
    together = names[codes].astype(object)
    return together[: len(reference)], together[len(reference) :]


def text_features(texts: np.ndarray) -> np.ndarray:
    """float32 [N, BUCKETS]: hashed words of each text, log counts, rows of length 1; equal texts are read once."""
    unique, codes = np.unique(texts.astype(str), return_inverse=True)
    words = pc.utf8_split_whitespace(pc.utf8_lower(pa.array(unique.tolist(), pa.string())))
    parents = pc.list_parent_indices(words).to_numpy()
    flat = pc.list_flatten(words).dictionary_encode()
    buckets = np.array([zlib.crc32(word.encode("utf-8", "replace")) % BUCKETS for word in flat.dictionary.to_pylist()], np.int64)
    cells = parents.astype(np.int64) * BUCKETS + (buckets[flat.indices.to_numpy(zero_copy_only=False)] if len(buckets) else 0)
    counts = np.log1p(np.bincount(cells, minlength=len(unique) * BUCKETS).reshape(len(unique), BUCKETS))
    norms = np.linalg.norm(counts, axis=1, keepdims=True)
    return (counts / np.maximum(norms, 1e-9)).astype(np.float32)[codes]


def thin(column: Column, limit: int = MAX_OBSERVATIONS) -> Column:
    """At most `limit` of the values, evenly over all."""
    every = max(1, -(-len(column.values) // limit))
    return Column(column.values[::every], column.owner[::every])


def summary(name: str, column: Column) -> dict[str, Any]:
    """What a page shows of one side: mean and deciles of numbers, shares of kinds, the mean of rates."""
    values = column.values
    kind = COLUMNS[name].kind
    if kind == "kinds":
        names, counts = np.unique(values.astype(str), return_counts=True)
        order = sorted(range(len(names)), key=lambda i: (-counts[i], names[i]))[:12]
        return {"n": len(values), "shares": {str(names[i]): round(float(counts[i] / len(values)), 6) for i in order}}
    if kind == "texts":
        return {"n": len(values), "different": len(np.unique(values.astype(str)))}
    told: dict[str, Any] = {"n": len(values), "mean": _rounded(values.mean()) if len(values) else None}
    if kind in ("numbers", "ratios") and len(values):
        told["deciles"] = [_rounded(one) for one in np.quantile(values, np.linspace(0, 1, 11))]
    return told


def _rounded(value: float) -> float:
    return round(float(value), 4) + 0.0  # no negative zero


def numbers(values: Any) -> np.ndarray:
    """A numeric or boolean column as float64, null as NaN."""
    return np.asarray(pc.cast(values, pa.float64()).to_numpy(), dtype=float)


def _texts(values: pa.ChunkedArray) -> np.ndarray:
    return np.asarray([str(one) for one in values.to_pylist()], dtype=object)
