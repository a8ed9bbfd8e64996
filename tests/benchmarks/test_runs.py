"""From what the measuring processes say to the figures, with processes that only say something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import iteration, learning_vs_trl, scaling
from benchmarks.peers.spec import Evaluation, Iteration, Training, WarmStart
from ratchet.errors import RatchetError

CONSOLE = Console(quiet=True)


def one(spec: Iteration, seconds: float) -> dict[str, Any]:
    times = {"seconds": seconds, "rollout_s": seconds * 0.75, "update_s": seconds * 0.25, "cpu_s": seconds}
    work = {"turns": spec.turns * spec.episodes, "tokens_read": 50 * spec.turns, "tokens_written": 10 * spec.turns}
    return {**times, **work, "clock": {}}


def test_an_iteration_is_compared_by_medians_with_each_side_at_its_quickest_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Iteration]] = []

    def answer(side: str, spec: Iteration) -> dict[str, Any]:
        if side == "ours:turns":
            return {"turn_s": [[1.0] * (spec.turns - 1)] * spec.iterations}
        asked.append((side, spec))
        quick = 0.5 if spec.bf16 and spec.batch == 16 and side == "trl_side" else 1.0
        seconds = (20.0 if side == "trl_side" else 3.0) * quick * (2 if spec.turns == 45 and side == "trl_side" else 1)
        return {"iterations": [one(spec, seconds)], "peak_mb": 900.0 if side == "ours" else 1000.0}

    monkeypatch.setattr(iteration, "in_process", answer)
    monkeypatch.setattr(iteration, "trl_settings", dict)
    figures, told = iteration.iteration("folder", iteration.FULL, CONSOLE)
    assert figures["iteration_speedup_vs_trl"] == 3.333 and figures["iteration_speedup_vs_trl_45"] == 6.667
    assert figures["turn_time_last_over_first_third"] == 1.0 and figures["peak_memory_vs_trl"] == 0.9
    measured = [(side, spec) for side, spec in asked if spec.episodes == 64 and spec.turns == 15]
    assert [side for side, _ in measured] == ["trl_side", "ours", "ours", "trl_side", "trl_side", "ours"]  # neither is always the first
    assert all(spec.bf16 and spec.batch == 16 for side, spec in measured if side == "trl_side")
    assert len(told["settings_tried"]["trl_side"]) == 4 and told["iteration_15"]["ours"]["seconds"]["n"] == 3


def test_decoding_compares_the_better_way_of_each_side_in_the_same_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"ours_players": [200.0], "ours_one_process": [150.0]}
    rates |= {"generate_dynamic_fp32": [100.0], "generate_static_fp32": [80.0], "generate_dynamic_bf16": [400.0]}
    monkeypatch.setattr(iteration, "in_process", lambda side, spec: {"tokens_per_s": rates})
    figures, told = iteration.decoding("folder", iteration.FULL, CONSOLE)
    assert figures == {"decode_speedup_vs_generate": 2.0} and told["decode_tokens_per_s"]["generate_dynamic_bf16"]["median"] == 400


def test_exponents_come_from_the_least_time_at_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[tuple[int, int], int] = {}

    def answer(side: str, spec: Any) -> dict[str, Any]:
        if side == "learner":
            return {"mb_on_top": 300.0, "peak_mb": 900.0}
        point = (spec.episodes, spec.turns)
        calls[point] = calls.get(point, 0) + 1
        disturbed = 9.0 if spec.episodes == 256 and calls[point] == 2 else 1.0
        return {"iterations": [one(spec, spec.episodes * spec.turns**1.2 * disturbed)], "peak_mb": 1.0}

    monkeypatch.setattr(scaling, "in_process", answer)
    monkeypatch.setattr(scaling, "make_world", lambda *_, **__: 1)
    figures, told = scaling.run(scaling.FULL, CONSOLE)
    assert figures == {"episodes_exponent": 1.0, "turns_exponent": 1.2, "memory_exponent_episodes": 0.0}
    assert set(calls.values()) == {2} and len(told["points"]) == 6


def test_both_sides_learn_from_the_same_start_with_the_same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, Training]] = []

    def answer(side: str, spec: Any) -> dict[str, Any]:
        if isinstance(spec, WarmStart):
            return {"demonstrations": 9}
        if isinstance(spec, Evaluation):
            return {"success": {"warm": 0.3, "ours": 0.5, "trl-": 0.4}[spec.model[:4]]}
        trained.append((side, spec))
        return {"success": [0.3], "seconds": 1.0}

    monkeypatch.setattr(learning_vs_trl, "in_process", answer)
    figures, told = learning_vs_trl.run(learning_vs_trl.FULL, CONSOLE)
    assert figures == {"success_minus_trl": 0.1, "success_minus_trl_low": 0.1, "success_minus_trl_high": 0.1}
    mine, theirs = ([spec for side, spec in trained if side.startswith(name)] for name in ("learning", "trl"))
    assert [spec.seed for spec in mine] == [spec.seed for spec in theirs] == [1, 2, 3, 4, 5]
    for ours, peer in zip(mine, theirs, strict=True):
        assert {**vars(ours), "out": ""} == {**vars(peer), "out": ""}
    assert told["success"] == {"ours": 0.5, "trl": 0.4} and told["warm_start"]["success"] == 0.3


def test_the_steps_of_an_iteration_share_its_episodes_without_a_rest() -> None:
    for size in (learning_vs_trl.FULL, learning_vs_trl.QUICK):
        spec = learning_vs_trl.training("folder", size, 1, "out")
        assert spec.episodes % (spec.steps * spec.batch) == 0
    for size in (iteration.FULL, iteration.QUICK):
        for candidate in iteration.CANDIDATES["trl_side"] if size.try_tasks else [{"batch": size.samples}]:
            assert all(tasks * size.samples % candidate["batch"] == 0 for tasks in (size.tasks, size.long_tasks, size.try_tasks))


@pytest.mark.parametrize("module", [iteration, scaling, learning_vs_trl])
def test_what_goes_wrong_in_a_measuring_process_is_one_clear_message(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RatchetError("the measuring process for ours ended with 1")

    monkeypatch.setattr(module, "in_process", fails)
    monkeypatch.setattr(module, "make_world" if hasattr(module, "make_world") else "in_process", fails)
    monkeypatch.setattr("sys.argv", ["benchmark", "--quick", "--json", str(tmp_path / "out.json")])
    assert module.main() == 2
    assert "ended with 1" in capsys.readouterr().err and not (tmp_path / "out.json").exists()
