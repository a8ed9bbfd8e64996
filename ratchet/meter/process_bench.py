"""A meter's steps against the labels of somebody's trajectories (AgentProcessBench's form)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ratchet.credit.meter import Delta, Estimates, costs, deltas
from ratchet.evaluation.step_quality import Record, step_quality
from ratchet.meter.labels import units
from ratchet.meter.meter import Meter
from ratchet.meter.read import Reading
from ratchet.meter.written import places_of


def read_records(meter: Meter, records: Sequence[Record]) -> list[Reading]:
    """Trajectories in the meter's tokenizer, a question before each step that has a label."""
    out = []
    for one in records:
        prompts = meter.template.observations_ids([seen for seen, _ in one.turns], [t == 0 for t in range(len(one.turns))])
        replies = meter.template.replies_ids([said for _, said in one.turns])
        wrote = np.array([len(ids) for ids in replies], np.int64)
        points = np.cumsum([len(ids) for ids in prompts]) + np.cumsum(wrote) - wrote - 1 - meter.grammar.behind
        ids = np.concatenate([np.asarray(part, np.int64) for pair in zip(prompts, replies, strict=True) for part in pair])
        out.append(Reading(one.id, ids, np.where(points <= meter.room, points, -1), wrote, wrote))
    return out


def deltas_of(meter: Meter, records: Sequence[Record], delta: Delta = "paper") -> list[np.ndarray]:
    """Δ [T] of each trajectory, whose end costs 0 where it succeeded, else C."""
    readings = read_records(meter, records)
    trunks = [one.trunk for one in readings]
    found = meter.answers(trunks)
    p, out = meter.probability(found.logit), []
    for record, reading, where in zip(records, readings, places_of(trunks), strict=True):
        asked = reading.points >= 0
        own = Estimates(*(np.full(len(asked), value) for value in (False, 0.0, np.nan, False)), tokens=units(meter.target, reading.tokens))
        for name, values in (("completable", found.completable), ("p", p), ("remaining", found.remaining), ("parsed", found.parsed)):
            getattr(own, name)[asked] = values[where]
        c, share = costs(own, meter.limit, solved=record.solved, truncated=False)
        out.append(deltas(c, share, own.tokens, delta))
    return out


def judge_records(meter: Meter, records: Sequence[Record], validation: Sequence[Record], delta: Delta = "paper") -> dict[str, Any]:
    """`step_quality` of the steps of `records`, the dead zone tuned on those of `validation`; `too_long`: steps that did not fit."""

    def steps(some: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
        found = deltas_of(meter, some, delta)
        return np.concatenate([np.empty(0), *found]), np.concatenate([np.empty(0, int), *(one.labels for one in some)])

    return {
        **step_quality(*steps(records), tuning=steps(validation) if validation else None),
        "trajectories": len(records),
        "too_long": sum(one.too_long for one in read_records(meter, records)),
    }
