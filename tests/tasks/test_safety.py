"""An online round that computes wrong stops its stage: one clear line, exit code 2, and nothing of it is kept but its episodes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import ratchet.learners.online as online
from ratchet.episodes.template import load_template
from ratchet.errors import RatchetError
from ratchet.files import write_json
from ratchet.models.build import save_model
from ratchet.settings import dump_params, load, render_params
from ratchet.store.throughput import record_of
from ratchet.yaml_files import read_yaml
from tasks import evolve_online
from tasks.common import main
from tasks.warm_start import model_of
from tests.tasks.conftest import lay, run_stage
from tests.tasks.test_pipeline import spread

__all__ = ["spread"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which round 1 can learn: games, a random actor to start from, and a harvest that passed its checks."""
    folder = lay(tmp_path_factory.mktemp("begun"))
    for name in ("prepare", "demonstrate"):
        run_stage(folder, name)
    settings, source = load(folder / "params.yaml"), folder / "models" / "tokenizer"
    model = model_of(settings, settings.actor, source, load_template(source, settings.env.action_format))
    save_model(model, source, folder / "models" / "rounds" / "1" / "offline", {"stage": "warm_start", "parents": []})
    write_json(folder / "data" / "rounds" / "0" / "decision" / "decision.json", {"stop": None, "round": 0})
    write_json(folder / "data" / "rounds" / "1" / "check" / "verdict.json", {"checks": []})
    return folder


@pytest.fixture
def copy(begun: Path, tmp_path: Path) -> Path:
    shutil.copytree(begun, tmp_path / "copy")
    return tmp_path / "copy"


def change(folder: Path, *sets: str) -> None:
    (folder / "params.yaml").write_text(dump_params(render_params(read_yaml(folder / "params.yaml"), {}, list(sets))))


def test_a_round_says_what_taught_nothing_and_how_far_sampler_and_learner_are_apart(
    copy: Path, spread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stage(copy, "evolve_online", "1")
    said = capsys.readouterr().out
    assert "evolve_online@1 0% 0/2 iterations" in said and " of 3 groups alike" in said
    curve = json.loads((copy / "reports/metrics/evolve_online-1.json").read_text())["curve"]
    assert all(0 <= point["logprob_mean_diff"] <= point["logprob_max_diff"] < 1e-4 and point["logprob_tokens"] > 20 for point in curve)
    record = record_of(copy, "evolve_online@1")
    assert record is not None and record["state"] == "done" and record["wall_s"] > 0


def test_a_sampler_that_computes_something_else_stops_the_stage_with_one_line(
    copy: Path, spread: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = online.credited

    def wrong(*tables: object, **settings: str) -> online.Credited:
        batch = plain(*tables, **settings)
        for one in batch.sequences:
            one.old_logprobs = one.old_logprobs - 0.02
        return batch

    monkeypatch.setattr(online, "credited", wrong)
    monkeypatch.chdir(copy)
    monkeypatch.setattr(sys, "argv", ["evolve_online", "--round", "1"])
    with pytest.raises(SystemExit) as ended:
        main("evolve_online", evolve_online.run, "round")
    last = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(last) == 1
    said = "evolve_online: round 1, iteration 1: sampler and learner differ by 0.02 in the log-prob of a token, above evolve_online.logprob_limit"
    assert said in last[0]
    change(copy, "evolve_online.logprob_limit=0.05")
    run_stage(copy, "evolve_online", "1")  # the limit is a setting


def test_too_many_skipped_steps_stop_the_stage(copy: Path, spread: None) -> None:
    change(copy, "evolve_online.max_grad_norm=1e-9", "learner.max_grad_norm_ratio=1.0", "evolve_online.steps=1")
    with pytest.raises(RatchetError, match=r"^round 1, iteration 1: 1 of 2 optimiser steps were skipped .* lower evolve_online\.lr"):
        run_stage(copy, "evolve_online", "1")
    change(copy, "learner.max_skipped_share=1.0")
    run_stage(copy, "evolve_online", "1")
    curve = json.loads((copy / "reports/metrics/evolve_online-1.json").read_text())["curve"]
    assert [point["skipped_steps"] for point in curve] == [1, 1]


def test_a_warm_start_is_stopped_by_the_same_limits(copy: Path) -> None:
    change(copy, "warm_start.max_grad_norm=1e-9", "learner.max_grad_norm_ratio=1.0")
    with pytest.raises(RatchetError, match=r"^1 of 3 optimiser steps were skipped .* lower warm_start\.lr"):
        run_stage(copy, "warm_start", "small")
