"""The stages together: one small real run."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load_file, save_file

from ratchet.episodes.files import read_table, write_table
from ratchet.errors import RatchetError
from ratchet.evaluation.compare import compare
from ratchet.settings import dump_params, load, render_params
from tasks.common import Stage
from tests.tasks.conftest import CHECKOUT, THREADS, lay, order, run_stage
from tests.tasks.test_drift import solve_everything

OUTS = ("data", "models", "reports")


def digests(folder: Path) -> dict[str, str]:
    files = [path for out in OUTS for path in sorted((folder / out).rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def decision(folder: Path, key: str) -> dict:
    return json.loads((folder / "data" / "rounds" / key / "decision" / "decision.json").read_text())


def spoil(folder: Path) -> None:
    """Noise in place of every candidate's weights."""
    import torch

    for path in folder.glob("iter-*/model.safetensors"):
        generator = torch.Generator().manual_seed(0)
        weights = {name: torch.randn(value.shape, generator=generator) for name, value in load_file(str(path)).items()}
        save_file(weights, str(path), metadata={"format": "pt"})


def test_every_stage_wrote_what_dvc_yaml_says_and_left_no_scratch(finished: Path) -> None:
    for name, key in order(finished):
        entry = Stage(finished, load(finished / "params.yaml"), name, key).entry
        assert all((finished / path).exists() for path in [*entry["outs"], *entry["metrics"]]), (name, key)


def test_the_same_params_give_the_same_bytes_with_more_environment_workers_too(finished: Path, copy: Path) -> None:
    lay(copy, "env.workers=3")
    for name, key in (("harvest", "1"), ("evolve_online", "1")):  # demonstrations and evaluations are played by the same lines
        for out in Stage(copy, load(copy / "params.yaml"), name, key).entry["outs"]:
            shutil.rmtree(copy / out)
        run_stage(copy, name, key)
    first, second = digests(finished), digests(copy)
    assert sorted(path for path in first.keys() | second.keys() if first.get(path) != second.get(path)) == []


def test_outs_hold_no_path_of_this_machine(finished: Path) -> None:
    for path in (finished / "reports").rglob("*"):
        if path.is_file():
            assert str(finished) not in path.read_text(errors="replace")


def test_final_and_report_hold_the_numbers_that_compare_gives(finished: Path) -> None:
    final = json.loads((finished / "data" / "final" / "final.json").read_text())
    tables = [read_table(finished / "data" / "final" / f"{name}.parquet", "outcomes") for name in ("warm", "champion")]
    told = final["comparison"]
    again = compare(*tables, level=told["level"], resamples=load(finished / "params.yaml").final.resamples)
    assert again == told
    assert json.loads((finished / "reports" / "report.json").read_text())["final"]["comparison"] == told


def test_generated_tokens_are_stored_as_generated(finished: Path) -> None:
    steps = read_table(finished / "data" / "rounds" / "1" / "online" / "steps.parquet", "steps")
    assert set(steps["tokens_from"].to_pylist()) == {"generated"}
    lengths = zip(steps["reply_ids"].to_pylist(), steps["logprobs"].to_pylist(), strict=True)
    assert all(len(ids) == len(logprobs) > 0 for ids, logprobs in lengths)
    assert max(np.concatenate(steps["logprobs"].to_pylist())) <= 0


def test_a_round_made_worse_is_not_promoted_and_the_next_starts_from_the_champion(copy: Path) -> None:
    spoil(copy / "models" / "rounds" / "1" / "candidates")
    for name in ("evaluate", "decide"):
        run_stage(copy, name, "1")
    found = decision(copy, "1")
    assert not found["promoted"] and found["event"] in ("model.kept", "model.regression") and found["champion"]["round"] == 0
    start, champion = (copy / "models" / "rounds" / "1" / name / "model.safetensors" for name in ("start", "champion"))
    warm = (copy / "models" / "warm" / "actor" / "model.safetensors").read_bytes()
    assert start.read_bytes() == champion.read_bytes() == warm


def test_a_gain_that_is_not_shown_is_built_upon_where_the_version_did_better_on_select(copy: Path) -> None:
    path = copy / "data" / "rounds" / "1" / "evaluation" / "evaluation.json"
    evaluation = json.loads(path.read_text())
    for ahead, start in ((0.1, "last"), (0.0, "champion")):
        for one in evaluation["candidates"]:
            one["select"]["success"]["mean"] = decision(copy, "0")["champion"]["select"] + ahead
        path.write_text(json.dumps(evaluation))
        run_stage(copy, "decide", "1")
        found = decision(copy, "1")
        assert not found["promoted"] and found["next_start"] == start and found["champion"]["round"] == 0
        version = evaluation["version"] if start == "last" else found["champion"]["version"]
        assert json.loads((copy / "models" / "rounds" / "1" / "start" / "ratchet.json").read_text())["version"] == version


def test_a_version_that_solves_what_the_champion_cannot_is_promoted(copy: Path) -> None:
    solve_everything(copy)
    run_stage(copy, "decide", "1")
    found = decision(copy, "1")
    assert found["promoted"] and found["event"] == "model.promoted" and found["champion"]["round"] == 1
    version = json.loads((copy / "models" / "rounds" / "1" / "version" / "ratchet.json").read_text())["version"]
    assert json.loads((copy / "models" / "rounds" / "1" / "start" / "ratchet.json").read_text())["version"] == version


def test_a_failed_check_stops_the_run_but_not_its_report_until_it_is_waived(copy: Path) -> None:
    path = copy / "data" / "rounds" / "1" / "harvest" / "steps.parquet"
    steps = read_table(path, "steps")
    broken = ["nonsense"] * steps.num_rows
    write_table(path, "steps", steps.set_column(steps.schema.get_field_index("action"), "action", pa.array(broken)))
    rest = order(copy)[order(copy).index(("check", "1")) :]
    for name, key in rest[:-1]:
        run_stage(copy, name, key)
    assert "failed checks" in decision(copy, "1")["stop"] and decision(copy, "2")["stop"]
    assert (copy / "data" / "rounds" / "2" / "online" / "skipped.json").is_file()
    assert (copy / "reports" / "report.html").is_file()
    with pytest.raises(SystemExit) as stopped:
        run_stage(copy, "seal")
    assert stopped.value.code == 1
    failed = json.loads((copy / "reports" / "report.json").read_text())["failed_checks"]
    from monitoring.waivers import add_waiver

    for name in sorted({one["check"] for one in failed}):
        add_waiver(copy / "waivers.yaml", name, "planted")
    for name, key in rest:
        run_stage(copy, name, key)
    assert decision(copy, "1")["stop"] is None and decision(copy, "1")["waived"]


SPREAD = """
import pyarrow as pa, ratchet.learners.online as online
plain = online.credited
def credited(episodes, steps, **settings):
    solved = pa.array([row % 2 == 0 for row in range(episodes.num_rows)])
    return plain(episodes.set_column(episodes.schema.get_field_index("solved"), "solved", solved), steps, **settings)
online.credited = credited
"""  # so small an actor solves nothing, and groups without spread teach nothing: here every second episode counts as solved


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    import ratchet.learners.online as online

    monkeypatch.setattr(online, "credited", online.credited)  # put back at the end
    exec(SPREAD, {})


def test_a_stage_that_was_killed_goes_on_and_ends_with_the_same_bytes(copy: Path, spread: None) -> None:
    run_stage(copy, "evolve_online", "2")
    before = digests(copy)
    curve = json.loads((copy / "reports/metrics/evolve_online-2.json").read_text())["curve"]
    assert all(point["grad_norm"] > 0 for point in curve)
    shutil.rmtree(copy / "models" / "rounds" / "2" / "candidates")
    shutil.rmtree(copy / "data" / "rounds" / "2" / "online")
    code = SPREAD + (
        "import os, sys; from pathlib import Path; import tasks.evolve_online as t; from tasks.common import Stage; "
        "from ratchet.settings import load; "
        "t._Online._iterate = (lambda old: lambda self, i, pool: os._exit(9) if i == 2 else old(self, i, pool))(t._Online._iterate); "
        "root = Path.cwd(); t.run(Stage(root, load(root / 'params.yaml'), 'evolve_online', '2'))"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=copy, env={**_environment()}, capture_output=True, text=True, timeout=240)
    assert killed.returncode == 9, killed.stderr
    assert not (copy / "models" / "rounds" / "2" / "candidates").exists()
    run_stage(copy, "evolve_online", "2")
    assert digests(copy) == before


def test_settings_of_online_learning_reach_the_candidates(copy: Path, spread: None) -> None:
    from ratchet.yaml_files import read_yaml

    params, seen = read_yaml(copy / "params.yaml"), set()
    changes = ["", "evolve_online.average=0.0", "evolve_online.warmup=4", "evolve_online.steps=3", "env.max_invalid=1"]
    for change in changes:
        (copy / "params.yaml").write_text(dump_params(render_params(params, {}, [change] if change else [])))
        run_stage(copy, "evolve_online", "1")
        seen.add((copy / "models/rounds/1/candidates/iter-002/model.safetensors").read_bytes())
    assert len(seen) == len(changes)


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": str(THREADS)}


def test_a_damaged_file_is_one_clear_line_and_exit_code_2(copy: Path) -> None:
    path = copy / "data" / "rounds" / "1" / "harvest" / "steps.parquet"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RatchetError, match="damaged"):
        run_stage(copy, "label", "1")
    done = subprocess.run(
        [sys.executable, "-m", "tasks.label", "--round", "1"], cwd=copy, env=_environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and "steps.parquet" in done.stderr
