"""Success replay for the forecast term (methods §4): a group without a success may learn from its task's earlier ones.

The store holds the newest successes of each task, for a few rounds; it is the run's own and lies in its outs. Replayed episodes are
targets of the forecast term alone: they enter no GRPO group, no other term and no denominator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.episodes.files import read_table, table_of, write_table
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import PROMPT, REPLY, Sequence, sequences_of

KEPT = 4  # newest successes of a task
FILES = {"episodes": "episodes.parquet", "steps": "steps.parquet"}


@dataclass(frozen=True)
class Replayed:
    """Earlier successes for the groups that have none: `sequences` with the group that each is for and its weight."""

    sequences: list[Sequence]
    groups: list[str]
    weights: dict[str, float]  # by episode id
    steps: pa.Table
    scale: float  # what their weights were multiplied with to keep their share; 1 = nothing

    def metrics(self) -> dict[str, float]:
        return {
            "replayed_episodes": len(self.sequences),
            "replayed_groups": len(set(self.groups)),
            "replay_weight": float(np.mean([*self.weights.values()])) if self.weights else 0.0,
            "replay_scale": self.scale,
        }


def replay_weight(logp: np.ndarray, behaviour: np.ndarray) -> float:
    """min(1, exp(mean(log π_θ − log π_b))) over an episode's generated tokens, methods §4. [n], [n] → a weight in (0, 1]."""
    return float(min(1.0, np.exp(np.mean(logp.astype(np.float64) - behaviour.astype(np.float64)))))


def scale_to_share(own: float, replayed: float, share: float) -> float:
    """The factor ≤ 1 with which `replayed` is at most `share` of the sum with `own`; where there is nothing of one's own it is 0."""
    if replayed <= 0:
        return 1.0
    return min(1.0, share / (1 - share) * own / replayed)


class ReplayStore:
    """Successes by task, the newest first. The same calls in the same order give the same store."""

    def __init__(self, *, share: float, max_age: int) -> None:
        """`share` of the forecast loss, below 1, is the most that replay may be; `max_age` is in rounds."""
        self.share, self.max_age = share, max_age
        self.episodes, self.steps = table_of("episodes", []), table_of("steps", [])

    def add(self, episodes: pa.Table, steps: pa.Table) -> None:
        """Takes the successes of an iteration; of each task the newest KEPT stay (later round, later iteration, first sample)."""
        solved = episodes.filter(pc.and_(episodes["solved"], pc.is_null(episodes["error"])))
        both = pa.concat_tables([self.episodes, solved.select(self.episodes.column_names).cast(self.episodes.schema)])
        rows = both.select(["episode_id", "task_id", "round", "iteration", "sample"]).to_pylist()
        by_task: dict[str, list[tuple[int, int, int, str]]] = {}
        for row in rows:
            by_task.setdefault(row["task_id"], []).append((-row["round"], -row["iteration"], row["sample"], row["episode_id"]))
        self._keep(both, pa.concat_tables([self.steps, steps.select(self.steps.column_names).cast(self.steps.schema)]),
                   {one[-1] for found in by_task.values() for one in sorted(found)[:KEPT]})

    def forget(self, round: int) -> None:
        """Lets go of what is older than `max_age` rounds in `round`."""
        rows = self.episodes.select(["episode_id", "round"]).to_pylist()
        self._keep(self.episodes, self.steps, {row["episode_id"] for row in rows if round - row["round"] <= self.max_age})

    def _keep(self, episodes: pa.Table, steps: pa.Table, names: set[str]) -> None:
        wanted = pa.array(sorted(names), pa.string())
        order = [("episode_id", "ascending")]
        self.episodes = episodes.filter(pc.is_in(episodes["episode_id"], value_set=wanted)).sort_by(order).combine_chunks()
        self.steps = steps.filter(pc.is_in(steps["episode_id"], value_set=wanted)).sort_by([*order, ("t", "ascending")]).combine_chunks()

    def choose(self, episodes: pa.Table, learner: ActorLearner, own: float, *, divisor: int | None = None) -> Replayed:
        """Earlier successes of the tasks of those groups in `episodes` that have no success, weighted by the learner as it is.

        `own` is the mass that the iteration's own successes have in the loss (a group normalised by its successes has 1); `divisor` is
        the constant one of a group, None where it is the number of its successes. Episodes in other tokens are left out.
        """
        wanted = _without_success(episodes)
        tokenizer = set(episodes["tokenizer_id"].to_pylist())
        rows = [row for row in self.episodes.to_pylist() if row["task_id"] in wanted and row["tokenizer_id"] in tokenizer]
        names = [row["episode_id"] for row in rows]
        sequences = sequences_of(self.steps, None, names)
        logp = learner.logprobs(sequences)
        weights = {
            one.episode_id: replay_weight(logp[one.episode_id][one.role == REPLY], one.old_logprobs[one.role == REPLY]) for one in sequences
        }
        groups = [wanted[row["task_id"]] for row in rows]
        mass = sum(weights[name] / (divisor or groups.count(group)) for name, group in zip(names, groups, strict=True))
        scale = scale_to_share(own, mass, self.share)
        for one in sequences:
            _for_forecasts_alone(one)
        steps = self.steps.filter(pc.is_in(self.steps["episode_id"], value_set=pa.array(names, pa.string())))
        return Replayed(sequences, groups, {name: weight * scale for name, weight in weights.items()}, steps, scale)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, table in (("episodes", self.episodes), ("steps", self.steps)):
            write_table(folder / FILES[kind], kind, table)

    def read(self, folder: Path) -> None:
        """Takes what `write` left; raises RatchetError where it is damaged."""
        self.episodes, self.steps = (read_table(folder / FILES[kind], kind) for kind in ("episodes", "steps"))


def own_mass(solved: Mapping[str, Seq[bool]], *, mixed_only: bool, divisor: int | None) -> float:
    """What an iteration's own successes weigh in the forecast loss, by group: each group's outcomes → the sum over groups.

    `mixed_only`: groups in which all episodes succeeded count nothing (gate `mixed`); `divisor` as in `choose`.
    """
    total = 0.0
    for outcomes in solved.values():
        wins = sum(outcomes)
        if wins and not (mixed_only and wins == len(outcomes)):
            total += wins / (divisor or wins)
    return total


def _without_success(episodes: pa.Table) -> dict[str, str]:
    """Task → group of the groups without a success, errors apart; of several groups of one task the first."""
    groups: dict[str, tuple[str, bool]] = {}
    for row in episodes.select(["group_id", "task_id", "solved", "error"]).to_pylist():
        if row["error"] is None:
            task, solved = groups.get(row["group_id"], (row["task_id"], False))
            groups[row["group_id"]] = (task, solved or row["solved"])
    found: dict[str, str] = {}
    for group, (task, solved) in sorted(groups.items()):
        if not solved:
            found.setdefault(task, group)
    return found


def _for_forecasts_alone(one: Sequence) -> None:
    """No term but that of its branches wants it, and it counts in no denominator: it is silent and holds no token of the policy's."""
    one.silent, one.solved = True, False
    one.role[:] = PROMPT
