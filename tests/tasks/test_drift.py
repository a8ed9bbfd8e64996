"""The stage `drift` and what `decide` makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monitoring.waivers import add_waiver
from ratchet.episodes.files import read_table, write_table
from ratchet.settings import dump_params, render_params
from ratchet.yaml_files import read_yaml
from tests.tasks.conftest import run_stage


def told(folder: Path, name: str, key: str = "1") -> Any:
    return json.loads((folder / "data" / "rounds" / key / name).read_text())


def solve_everything(folder: Path) -> None:
    """As another version would: the run's own learned nothing, and is the champion."""
    path = folder / "data" / "rounds" / "1" / "evaluation" / "confirm.parquet"
    table = read_table(path, "outcomes")
    solved = [{**row, "version": "better", "solved": True, "score": 1.0, "truncated": False} for row in table.to_pylist()]
    write_table(path, "outcomes", pa.Table.from_pylist(solved, schema=table.schema))


def test_a_round_is_compared_with_the_one_before_and_with_the_warm_start(finished: Path) -> None:
    first, second = told(finished, "drift/drift.json"), told(finished, "drift/drift.json", "2")
    assert [one["against"] for one in first["references"]] == ["warm"] and [one["against"] for one in second["references"]] == ["warm", "previous"]
    names = {one["column"] for one in first["columns"]}
    assert {"episode_length", "action_types", "effective_samples", "kl", "observations"} <= names and first["passed"]
    assert sum(one["column"] == "kl" for one in second["columns"]) == 1
    assert all(check["passed"] for check in told(finished, "drift/evaluation.json")["checks"] if check["severity"] == "fail")
    assert "outcomes.complete" in {check["name"] for check in told(finished, "drift/evaluation.json")["checks"]}
    assert "accepted" not in told(finished, "check/accepted.json", "2") and set(told(finished, "check/accepted.json", "2")) == {"round", "policies"}


def test_ratios_are_those_of_the_new_version_and_1_for_the_policy_that_played(finished: Path) -> None:
    from tasks.ratios import log_ratios

    base = finished / "data" / "rounds" / "1" / "harvest"
    episodes = read_table(base / "episodes.parquet", "episodes").to_pylist()
    mine = {row["episode_id"]: row["n_steps"] for row in episodes if row["policy_id"] == "actor"}
    steps = read_table(base / "steps.parquet", "steps")
    steps = steps.filter(pa.array([one in mine for one in steps["episode_id"].to_pylist()]))
    same = log_ratios(finished / "models/rounds/0/start", steps, temperature=1.0, budget=1000)
    assert {name: len(values) for name, values in same.items()} == mine
    assert max(np.abs(values).max() for values in same.values()) < 1e-4
    other = log_ratios(finished / "models/warm/small", steps, temperature=1.0, budget=1000)
    assert max(np.abs(values).max() for values in other.values()) > 0.1


def test_drift_beyond_its_limit_keeps_a_version_from_being_promoted_until_it_is_waived(copy: Path) -> None:
    solve_everything(copy)
    path = copy / "data" / "rounds" / "1" / "drift" / "drift.json"
    drift = json.loads(path.read_text())
    drift["columns"][0]["level"] = "fail"
    name = drift["columns"][0]["name"]
    path.write_text(json.dumps({**drift, "status": "fail", "passed": False}))
    run_stage(copy, "decide", "1")
    kept = told(copy, "decision/decision.json")
    assert (kept["promoted"], kept["event"], kept["stop"], kept["next_start"]) == (False, "model.kept", None, "champion")
    assert kept["drift"]["failed"] == [name] and name in kept["reasons"][-1] and kept["regression"]["verdict"] == "better"
    add_waiver(copy / "waivers.yaml", name, "it was meant to")
    run_stage(copy, "decide", "1")
    promoted = told(copy, "decision/decision.json")
    assert promoted["promoted"] and promoted["waived"] == [{"check": name, "reason": "it was meant to"}]


def test_an_evaluation_that_lost_a_task_stops_the_run_by_the_checks_name(copy: Path) -> None:
    path = copy / "data" / "rounds" / "1" / "evaluation" / "confirm.parquet"
    write_table(path, "outcomes", read_table(path, "outcomes").slice(1))
    for stage in ("drift", "decide"):
        run_stage(copy, stage, "1")
    assert told(copy, "decision/decision.json")["stop"] == "failed checks: outcomes.complete"


def test_credit_is_kept_for_the_next_round_and_nothing_is_compared_where_drift_is_off(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = read_table(copy / "data/rounds/1/online/steps.parquet", "steps")
    for k, shift in (("1", 0.0), ("2", 50.0)):
        table = pa.table({"episode_id": steps["episode_id"], "t": steps["t"], "cost": pa.array(np.arange(steps.num_rows) % 7 + shift)})
        pq.write_table(table, copy / f"data/rounds/{k}/online/meter.parquet")
        run_stage(copy, "drift", k)
    (moved,) = [one for one in told(copy, "drift/drift.json", "2")["columns"] if one["column"] == "meter_cost"]
    assert moved["level"] == "warn" and moved["against"] == "previous"
    (copy / "params.yaml").write_text(dump_params(render_params(read_yaml(copy / "params.yaml"), {}, ["drift.enabled=false"])))
    monkeypatch.setattr("monitoring.drift_methods.stattests", lambda: pytest.fail("drift is off"))
    run_stage(copy, "drift", "2")
    off = told(copy, "drift/drift.json", "2")
    assert off["columns"] == [] and off["passed"] and off["note"] == "drift.enabled is false"
    assert told(copy, "drift/evaluation.json", "2")["checks"] and "drift.enabled is false" in (copy / "data/rounds/2/drift/drift.html").read_text()
