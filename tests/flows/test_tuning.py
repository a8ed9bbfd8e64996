"""`ratchet tune`: what is faster is written where a run takes it from, and nothing else changes."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest

from flows import tuning
from flows.tuning import Tuning
from ratchet.rendering import render_run
from ratchet.settings import parse
from tests.flows.conftest import CHECKOUT
from tests.flows.test_cli import call
from tests.models import tiny


def tuned(none: float, bf16: float, threads: dict[int, float] | None = None) -> Tuning:
    """Rates of updates; a run learns from 1000 tokens in each section."""
    rates = {section: {"none": none, "bf16": bf16} for section in tuning.SECTIONS}
    return Tuning(1000, rates, threads or {2: none}, 2, {"none": 2000 / none, "bf16": 2000 / bf16})


@pytest.mark.parametrize(("bf16", "best"), [(200.0, "bf16"), (103.0, "none"), (30.0, "none")])
def test_bf16_has_to_be_clearly_faster(bf16: float, best: str) -> None:
    assert tuned(100.0, bf16).best == best


def test_other_threads_are_named_where_they_are_clearly_faster() -> None:
    assert tuned(100, 1, {1: 60, 2: 100, 4: 103}).best_threads == 2
    assert tuned(100, 1, {1: 120, 2: 100}).best_threads == 1


def test_what_pays_is_written_into_params_and_nothing_else_changes(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "measure", lambda *_: tuned(100, 250, {2: 250, 1: 300}))
    before = (inside / "params.yaml").read_text()
    code, out, err = call(capsys, "tune", "--dry-run")
    assert code == 0, err
    assert "would become bf16" in out and (inside / "params.yaml").read_text() == before
    assert "2.50 times as fast in bf16" in out and "100 tokens/s" in out and "250 tokens/s" in out
    assert "`export OMP_NUM_THREADS=1`" in out
    assert "was none and is bf16" in call(capsys, "tune")[1]
    after = (inside / "params.yaml").read_text()
    changed = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]
    assert len(changed) == 2 and changed[1].startswith("+   autocast: bf16") and changed[1].split("#")[1] == changed[0].split("#")[1]
    assert "stays bf16" in call(capsys, "tune")[1] and (inside / "params.yaml").read_text() == after
    monkeypatch.setattr(tuning, "measure", lambda *_: tuned(100, 30))
    said = json.loads(call(capsys, "tune", "--json")[1])
    assert (said["autocast"], said["was"], said["written"]) == ("none", "bf16", True) and said["tokens_per_s"]["warm_start"]["bf16"] == 30
    assert (inside / "params.yaml").read_text() == before


def test_where_a_preset_gives_it_the_preset_is_written(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (inside / "presets" / "mine.yaml").write_text("line: mine  # of mine\nlearner: {autocast: bf16}\n")
    before = (inside / "params.yaml").read_text()
    monkeypatch.setattr(tuning, "measure", lambda *_: tuned(100, 30))
    code, out, err = call(capsys, "tune", "--preset", "mine")
    assert code == 0, err
    assert "presets/mine.yaml: learner.autocast was bf16 and is none" in out and (inside / "params.yaml").read_text() == before
    assert (inside / "presets" / "mine.yaml").read_text() == "line: mine  # of mine\nlearner: {autocast: none}\n"


def test_both_precisions_are_measured_in_turns_on_real_updates() -> None:
    settings = parse(render_run(CHECKOUT, "smoke", []), "", CHECKOUT)
    model = tiny.model()
    order: list[bool] = []  # whether in full precision
    from ratchet.learners.actor import ActorLearner

    with pytest.MonkeyPatch.context() as patch:
        plain = ActorLearner.update
        patch.setattr(ActorLearner, "update", lambda self, batch, lr: order.append(self.is_exact) or plain(self, batch, lr))
        rates = tuning.update_rates(settings, "evolve_online", model, tiny.sequences(6))
    assert set(rates) == {"none", "bf16"} and all(rate > 0 for rate in rates.values())
    assert order[:4] == [False, True, True, False] and len(order) >= 8
