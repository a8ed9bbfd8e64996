from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.errors import RatchetError
from ratchet.store.outbox import Event, delivered, mark_delivered, pending, put, stage_failed

EVENT = Event("model.promoted", "run-1", 1, "quickstart", "abc", "round 1: promoted abc", {"gain": {"mean": 0.1}})


def test_an_event_waits_until_it_is_delivered_and_goes_out_once(tmp_path: Path) -> None:
    assert put(tmp_path, EVENT) is True and put(tmp_path, EVENT) is False
    (waiting,) = pending(tmp_path)
    assert replace(waiting, at="") == EVENT and waiting.id == EVENT.id and waiting.at
    mark_delivered(tmp_path, waiting.id)
    mark_delivered(tmp_path, waiting.id)
    assert put(tmp_path, EVENT) is False and pending(tmp_path) == [] and delivered(tmp_path) == [waiting]


def test_events_come_oldest_first(tmp_path: Path) -> None:
    events = [replace(EVENT, round=k) for k in (5, 1, 3)]
    for event in events:
        put(tmp_path, event)
    assert [event.round for event in pending(tmp_path)] == [5, 1, 3]


def test_a_second_failure_is_another_event(tmp_path: Path) -> None:
    assert put(tmp_path, stage_failed("run-1", "harvest@1", "out of memory", "10:00"))
    assert not put(tmp_path, stage_failed("run-1", "harvest@1", "out of memory", "10:00"))
    assert put(tmp_path, stage_failed("run-1", "harvest@1", "out of memory", "11:00"))


def test_unknown_kinds_and_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RatchetError, match="is none of check.failed"):
        put(tmp_path, replace(EVENT, kind="model.praised"))
    with pytest.raises(RatchetError, match="no such event"):
        mark_delivered(tmp_path, "0" * 16)
