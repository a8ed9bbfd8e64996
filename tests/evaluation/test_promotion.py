from __future__ import annotations

import numpy as np
import pytest

from ratchet.errors import RatchetError
from ratchet.evaluation.compare import bootstrap, compare
from ratchet.evaluation.promotion import decide, level_of, spending
from tests.evaluation.fabricate import outcomes


def comparison(low: float, high: float, of: tuple[str, str] = ("a", "b"), **strata: tuple[float, float]) -> dict:
    """`strata`: name to (mean, high)."""
    return {
        "a": {"version": of[0]},
        "b": {"version": of[1]},
        "panel": "confirm",
        "n": 512,
        "clusters": 12,
        "level": 0.95,
        "gain": {"mean": (low + high) / 2, "low": low, "high": high},
        "by_stratum": {s: {"n": 80, "gain": {"mean": mean, "low": mean - 1, "high": top}} for s, (mean, top) in strata.items()},
    }


@pytest.mark.parametrize(
    ("found", "promoted", "event"),
    [
        (comparison(0.01, 0.1, pick=(-0.1, -0.02)), True, "model.promoted"),  # a loss within the limit
        (comparison(0.01, 0.1, pick=(-0.3, 0.01)), True, "model.promoted"),  # a loss that may be chance
        (comparison(0.01, 0.1, pick=(-0.16, -0.01)), False, "model.regression"),  # better on the whole, worse in a stratum
        (comparison(0.0, 0.1), False, "model.kept"),  # zero is not above zero
        (comparison(-0.05, 0.1), False, "model.kept"),
        (comparison(-0.1, 0.0), False, "model.kept"),
        (comparison(-0.1, -0.01), False, "model.regression"),
    ],
)
def test_the_rule(found: dict, promoted: bool, event: str) -> None:
    verdict = decide(found, max_stratum_loss=0.15)
    assert (verdict.promoted, verdict.event) == (promoted, event)
    assert "confirm" in verdict.reasons[0] and all("\n" not in reason for reason in verdict.reasons)


@pytest.mark.parametrize("found", [comparison(0.01, 0.1, ("a", "a")), comparison(-0.1, -0.01, ("a", "a")), comparison(-0.1, 0.1, ("a", "a"), heat=(-0.3, -0.1))])
def test_a_version_is_neither_better_nor_worse_than_itself(found: dict) -> None:
    verdict = decide(found, max_stratum_loss=0.15)
    assert (verdict.promoted, verdict.event) == (False, "model.kept") and "whatever differs is chance" in verdict.reasons[1]


def test_the_reason_names_the_task_type_that_lost() -> None:
    reasons = decide(comparison(0.01, 0.1, heat=(-0.2, -0.1), pick=(0.2, 0.3)), 0.15).reasons
    assert any("heat lost 0.200 (limit 0.15" in reason for reason in reasons) and not any("pick" in reason for reason in reasons)


def test_what_all_rounds_spend_is_alpha() -> None:
    assert sum(spending(0.05, 7, k) for k in range(1, 8)) == pytest.approx(0.05)
    assert level_of(spending(0.05, 2, 1)) == pytest.approx(0.95)
    for k in (0, 8):
        with pytest.raises(RatchetError, match="outside 1"):
            spending(0.05, 7, k)


def test_runs_in_which_nothing_changes_promote_within_alpha() -> None:
    """Each run: 3 rounds, each with a new candidate as good as the champion; scenes favour one or the other at random."""
    rng, runs, rounds, false = np.random.default_rng(3), 400, 3, 0
    tail = spending(0.05, rounds, 1)
    scenes = np.arange(240) % 12
    for _ in range(runs):
        champion = rng.random(240) < 0.5
        for k in range(rounds):
            favour = np.clip(0.5 + rng.normal(0, 0.15, 12), 0, 1)[scenes]
            candidate = np.where(rng.random(240) < 0.25, rng.random(240) < favour, champion)
            gain = bootstrap(candidate.astype(float) - champion, scenes, tail, 500, k)
            if decide(comparison(gain.low, gain.high), max_stratum_loss=0.15).promoted:
                false += 1
                break
    assert false / runs <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / runs)


def test_a_real_gain_is_promoted() -> None:
    rng = np.random.default_rng(4)
    champion = rng.random(512) < 0.5
    better = champion | (rng.random(512) < 0.15)
    assert decide(compare(outcomes("a", champion), outcomes("b", better), level=0.95, resamples=2000), 0.15).promoted
    assert decide(compare(outcomes("a", better), outcomes("b", champion), level=0.95, resamples=2000), 0.15).event == "model.regression"
