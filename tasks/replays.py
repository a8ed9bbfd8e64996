"""The store of earlier successes that the online rounds of a run hand on to each other (ratchet/learners/replay.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.files import write_json
from tasks.common import SKIPPED, Stage, skipped

if TYPE_CHECKING:
    from ratchet.learners.actor import ActorLearner
    from ratchet.learners.online import Credited
    from ratchet.learners.replay import ReplayStore


def replay_folder(round: str | int) -> str:
    """Where a round leaves its store for the next one."""
    return f"data/rounds/{round}/replay"


def store_of(stage: Stage, played: Iterable[tuple[pa.Table, pa.Table]]) -> ReplayStore | None:
    """What the round before left, and the successes of `played`, the iterations of this round that are done; None where replay is off."""
    from ratchet.learners.replay import ReplayStore

    assert stage.key is not None
    own = stage.settings.evolve_online.forecast
    if not (own.weight and own.replay.share):
        return None
    store = ReplayStore(share=own.replay.share, max_age=own.replay.max_age)
    before = stage.path(replay_folder(stage.settings.rounds[stage.key].prev))
    if skipped(before) is None:
        store.read(before)
    store.forget(int(stage.key))
    for episodes, steps in played:
        store.add(episodes, steps)
    return store


def with_earlier_successes(
    store: ReplayStore | None, batch: Credited, episodes: pa.Table, steps: pa.Table, learner: ActorLearner, *, mixed_only: bool, divisor: int | None
) -> tuple[Credited, pa.Table, dict[str, float], dict[str, float]]:
    """(the batch with replayed episodes behind it, the steps of all, their weights, metrics); nothing is added where replay is off.

    `episodes` and `steps` are the iteration's; `mixed_only` and `divisor` say what its own successes weigh (`own_mass`).
    """
    from ratchet.learners.replay import own_mass

    if store is None:
        return batch, steps, {}, {}
    outcomes: dict[str, list[bool]] = {}
    for one, group in zip(batch.sequences, batch.group_ids, strict=True):
        outcomes.setdefault(group, []).append(one.solved)
    groups = pa.array(sorted(outcomes), pa.string())
    mine = episodes.filter(pc.is_in(episodes["group_id"], value_set=groups))
    found = store.choose(mine, learner, own_mass(outcomes, mixed_only=mixed_only, divisor=divisor), divisor=divisor)
    stratum = dict(zip(batch.group_ids, batch.strata, strict=True))
    more = replace(
        batch,
        sequences=[*batch.sequences, *found.sequences],
        group_ids=[*batch.group_ids, *found.groups],
        strata=[*batch.strata, *(stratum[group] for group in found.groups)],
    )
    return more, pa.concat_tables([steps, found.steps.select(steps.column_names).cast(steps.schema)]), found.weights, found.metrics()


def write_store(stage: Stage, store: ReplayStore | None) -> None:
    """The stage's out: the store, or why there is none."""
    folder = stage.out(replay_folder(stage.key or 0))
    if store is None:
        write_json(folder / SKIPPED, {"skipped": "evolve_online.forecast.replay is off"})
    else:
        store.write(folder)
