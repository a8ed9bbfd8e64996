"""What the suite asks of evaluations, panels, buffers and lengths; the columns themselves, and one verdict on all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from monitoring.quality import run_suite
from monitoring.quality_page import verdict_page
from monitoring.quality_results import Results, buffer_columns, outcome_columns, panel_columns, profile, shifts
from monitoring.waivers import add_waiver, apply_waivers, read_waivers
from ratchet.episodes.files import table_of
from ratchet.episodes.schema import OUTCOMES
from tests.monitoring import fabricate
from tests.monitoring.fabricate import Made

Rows = list[dict[str, Any]]


def evaluated(tasks: int = 6) -> tuple[Made, Rows, frozenset[str]]:
    """Episodes on `confirm`, one a task, and their outcomes."""
    made = Made(tasks, samples=1)
    names = [row["episode_id"] for row in made.episodes]
    rows = []
    for episode in made.episodes:
        steps = [step for step in made.steps if step["episode_id"] == episode["episode_id"]]
        own = {name: episode.get(name) for name in OUTCOMES.names}
        rows.append({**own, "version": "v" * 12, "panel": "confirm", "panel_hash": "h1", "n_invalid": sum(not step["valid"] for step in steps)})
    assert len(set(names)) == len(names)
    return made, rows, frozenset(made.panels["train"])


def broken_rows(spoil: Callable[[Rows], None]) -> dict[str, list[str]]:
    """Of each check on outcomes that fails, the rows that it names."""
    made, rows, tasks = evaluated()
    spoil(rows)
    frames = outcome_columns(Results(table_of("outcomes", rows), "confirm", "h1", tasks), made.tables()[0])
    found = {}
    for frame in frames.values():
        for name, values in frame.items():
            if "." in name and not all(values):
                found[name] = [row for row, fine in zip(frame["row"], values, strict=True) if not fine]
    return found


FAULTS: dict[str, tuple[Callable[[Rows], None], str, str]] = {
    "an outcome twice": (lambda rows: rows.append(dict(rows[1])), "outcomes.sample_unique", "train-1#0"),
    "a task that was not played": (lambda rows: rows.pop(1), "outcomes.complete", "train-1"),
    "a task of no panel": (lambda rows: rows[1].update(task_id="other"), "outcomes.tasks_in_panel", "other#0"),
    "an outcome of another panel": (lambda rows: rows[1].update(panel_hash="h2"), "outcomes.same_panel", "train-1#0"),
    "an outcome of another version": (lambda rows: rows[1].update(version="w" * 12), "outcomes.one_version", "train-1#0"),
    "neither solved nor an error": (lambda rows: rows[1].update(solved=None), "outcomes.solved_known", "train-1#0"),
    "solved with half a score": (lambda rows: rows[1].update(score=0.5), "outcomes.solved_is_full_score", "train-1#0"),
    "more invalid steps than steps": (lambda rows: rows[1].update(n_invalid=99), "outcomes.counts_range", "train-1#0"),
    "an outcome that its episode denies": (lambda rows: rows[1].update(n_steps=99), "outcomes.episode_matches", "train-1#0"),
    "an outcome without an episode": (lambda rows: rows[1].update(episode_id="gone"), "outcomes.episode_matches", "train-1#0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_in_an_evaluation_is_caught_by_name(fault: str) -> None:
    spoil, name, row = FAULTS[fault]
    assert row in broken_rows(spoil)[name]


def test_a_clean_evaluation_breaks_nothing() -> None:
    assert broken_rows(lambda rows: None) == {}


def test_a_task_of_two_panels_is_named_in_both() -> None:
    columns = panel_columns({"train": {"a", "b"}, "confirm": {"b"}})
    assert [row for row, fine in zip(columns["row"], columns["panels.disjoint"], strict=True) if not fine] == ["confirm/b", "train/b"]


def test_a_buffer_holds_no_later_round_and_no_error() -> None:
    made = Made(2)
    made.episodes[0]["round"], made.episodes[1]["error"] = 3, "crash"
    columns = buffer_columns(made.tables()[0].sort_by("episode_id"), 2)
    assert (~columns["buffer.not_from_later"]).sum() == 1 and (~columns["buffer.no_error"]).sum() == 1


def test_lengths_shift_by_standard_deviations_where_there_is_enough_to_tell() -> None:
    before = profile(*Made(tasks=20).tables()[:2])
    assert set(shifts(before, before).values()) == {0.0} and set(before) == {"actor", "expert"}
    longer = profile(*Made(tasks=20, length=9).tables()[:2])
    assert shifts(longer, before)["episode_length"] > 3.0
    few = profile(*Made(tasks=4, length=9).tables()[:2])
    assert shifts(few, before) == {} == shifts(before, {})


def test_all_of_it_in_one_verdict_whose_page_names_rows_and_is_harmless(tmp_path: Any) -> None:
    made, rows, tasks = evaluated()
    rows[1]["panel_hash"] = "h2"
    made.step("e00002-0", 1)["action"] = "go to moon 9"
    hostile = "<img src=x onerror=alert(1)>\x1b[2J"
    made.episodes[0]["policy_id"] = hostile
    for row in made.episodes:
        row["temperature"] = 1.0
    results = Results(table_of("outcomes", rows), "confirm", "h1", tasks)
    accepted = profile(*Made(tasks=20).tables()[:2])
    limits = {**fabricate.LIMITS, "max_action_share": 0.01, "min_class_share": 0.5, "max_length_shift": 0.01}
    verdict = run_suite(*made.tables(), limits=limits, panels=made.panels, replay=None, results=results, accepted=accepted, buffer_of=1)
    failed = {check["name"]: check for check in verdict["checks"] if not check["passed"]}
    assert failed["outcomes.same_panel"]["rows"] == ["train-1#0"] and failed["steps.action_literal_in_reply"]["rows"] == ["e00002-0:1"]
    assert failed["episodes.one_action"]["severity"] == "warn" and "buffer.no_error" in {check["name"] for check in verdict["checks"]}
    add_waiver(tmp_path / "waivers.yaml", "outcomes.same_panel", f"known {hostile}")
    page = verdict_page("Round 1: checks", apply_waivers(verdict, read_waivers(tmp_path / "waivers.yaml")))
    assert "<td><code>e00002-0</code></td>" in page and '<td class="number">1</td>' in page and "ratchet episode e00002-0" in page
    assert "<img" not in page and "\x1b" not in page and "waived: known &lt;img" in page and "http" not in page


def test_drift_can_be_waived_by_its_column(tmp_path: Any) -> None:
    add_waiver(tmp_path / "waivers.yaml", "drift.episode_length", "shorter is what we wanted")
    assert read_waivers(tmp_path / "waivers.yaml") == [{"check": "drift.episode_length", "reason": "shorter is what we wanted"}]


def test_outcomes_of_a_wrong_schema_are_one_clear_failure() -> None:
    made, rows, tasks = evaluated(2)
    table = table_of("outcomes", rows).drop_columns(["solved"]).append_column("mood", pa.nulls(2, pa.string()))
    verdict = run_suite(*made.tables(), limits={}, panels=None, replay=None, results=Results(table, "confirm", "h1", tasks))
    assert {check["name"] for check in verdict["checks"] if not check["passed"]} == {"outcomes.schema"}
    assert np.all(["solved is missing" in check["detail"] for check in verdict["checks"] if not check["passed"]])
