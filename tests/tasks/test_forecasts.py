"""Forecasts in an online round: what they change, what leaves the round as it was, and what is refused before anything is played."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.errors import RatchetError
from ratchet.learners import forecast
from ratchet.settings import load
from tasks.forecasts import forecaster_of
from tests.episodes import chat_templates as chat
from tests.models import tiny
from tests.tasks.conftest import run_stage
from tests.tasks.test_safety import begun as begun, change, copy as copy

METRICS = "reports/metrics/evolve_online-1.json"
ON = ("evolve_online.forecast.weight=0.1", "evolve_online.forecast.gate=all")


def played(folder: Path, other: Path, *sets: str) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The curve of a round and the weights of its candidates, in a copy of `folder`."""
    shutil.copytree(folder, other)
    change(other, *sets)
    run_stage(other, "evolve_online", "1")
    weights = [path.read_bytes() for path in sorted(other.glob("models/rounds/1/candidates/*/model.safetensors"))]
    return json.loads((other / METRICS).read_text())["curve"], weights


def test_forecasts_change_what_is_learned_and_are_told(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "action_ids", lambda template, ids: tuple(ids[:2]) or None)  # so small an actor is in no format
    plain, without = played(copy, tmp_path / "plain")
    assert not any(name.startswith("forecast") for point in plain for name in point)
    found: dict[str, list[bytes]] = {}
    for name, sets in {"joint": (), "separate": ("evolve_online.forecast.mode=separate",), "drawn": ("evolve_online.forecast.prefixes=1",)}.items():
        points, found[name] = played(copy, tmp_path / name, *ON, *sets)
        assert all(point["forecast_targets"] > 0 and point["forecast"] > 0 and point["forecast_nll"] > 0 for point in points)
        assert all(0 <= point["forecast_mix_gap"] <= 1 for point in points)
        if name == "drawn":
            assert all(point["forecast_targets"] == point["forecast_episodes"] for point in points)
    assert len({tuple(one) for one in (without, *found.values())}) == 3
    assert found["separate"] == found["joint"]  # nothing was solved, so the policy took no steps between


def test_a_gate_that_leaves_nothing_is_told_and_the_round_is_that_of_grpo(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, without = played(copy, tmp_path / "plain")
    assert not any(point["success"] for point in plain)  # so small an actor solves nothing
    points, weights = played(copy, tmp_path / "wins", "evolve_online.forecast.weight=0.1")
    assert weights == without and all(point["forecast_targets"] == 0 and "forecast_nll" not in point for point in points)
    assert "forecast.gate=wins left no episode to forecast" in "".join(capsys.readouterr())


def staged(folder: Path, *sets: str) -> Any:
    change(folder, *sets)
    return SimpleNamespace(settings=load(folder / "params.yaml"))


def test_a_plan_beyond_the_context_and_an_episode_beyond_the_budget_are_refused_with_the_numbers(copy: Path) -> None:
    model = tiny.model()
    assert forecaster_of(staged(copy), tiny.tokenizer_folder(), model) is None
    found = forecaster_of(staged(copy, *ON), tiny.tokenizer_folder(), model)
    assert found is not None and found.longest_plan == 3 and found.context == 256
    words = tiny.chat_folder(chat.QWEN3)
    with pytest.raises(RatchetError, match=r"batch_tokens: 1440 is below \d+, one episode of env.max_tokens=320.*PLAN takes \d\d tokens"):
        forecaster_of(staged(copy, "evolve_online.batch_tokens=1440"), words, model)  # enough with the shortest PLAN
    model.config.max_position_embeddings = 20
    with pytest.raises(RatchetError, match=r"PLAN takes \d\d tokens of .* whose context of 20"):
        forecaster_of(staged(copy, "evolve_online.batch_tokens=4096"), words, model)
