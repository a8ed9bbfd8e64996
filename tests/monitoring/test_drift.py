"""Drift is seen where it is, by the column that names it, and chance is not taken for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from monitoring.drift import FEW, Limits, compare_sides, verdict
from monitoring.drift_columns import COLUMNS, MAX_TYPES, OTHER, Column, Side, common_types, credit_columns, side_of, text_features
from monitoring.drift_methods import auc, effective_samples, k3, score
from monitoring.drift_page import drift_page
from ratchet.errors import RatchetError
from ratchet.settings import load

ROOT = Path(__file__).parents[2]
VERBS = ("go", "take", "put", "open", "look")
SHARES = (0.4, 0.2, 0.2, 0.15, 0.05)
LIMITS = {name: Limits(one["warn"], one["fail"]) for name, one in load(ROOT / "params.yaml").drift.model_dump().items() if isinstance(one, dict)}


def played(seed: int, episodes: int = 300, *, tasks: int | None = None, shares: tuple[float, ...] = SHARES, longer: float = 1.0, wordy: float = 1.0,
           invalid: float = 0.05, mute: dict[str, float] | None = None, success: float = 0.6, room: str = "room") -> Side:  # fmt: skip
    """What a policy that draws everything by chance did; `mute` is the share of its steps without an action, by stratum."""
    rng = np.random.default_rng(seed)
    rows, steps = [], []
    for i in range(episodes):
        task, stratum = i % (tasks or episodes), ("heat", "cool", "put")[i % 3]
        name, n = f"{seed}-{i:04d}", max(1, round(rng.normal(8, 2) * longer))
        rows.append({"episode_id": name, "task_id": f"t{task}", "stratum": stratum, "error": None, "n_steps": n, "solved": bool(rng.random() < success)})
        for _ in range(n):
            silent = rng.random() < (mute or {}).get(stratum, 0.02)
            verb = "" if silent else str(rng.choice(VERBS, p=shares))
            steps.append({"episode_id": name, "reply_ids": [1] * max(1, round(rng.normal(12, 3) * wordy)), "action_type": verb, "action": f"{verb} x",
                          "format_ok": not silent, "valid": not silent and bool(rng.random() >= invalid),
                          "observation": f"You are in {room} {rng.integers(40)}. You see a {rng.choice(['lamp', 'desk', 'bed'])}."})  # fmt: skip
    return side_of(pa.Table.from_pylist(rows, schema=EPISODES), pa.Table.from_pylist(steps))


EPISODES = pa.schema([("episode_id", pa.string()), ("task_id", pa.string()), ("stratum", pa.string()), ("error", pa.string()),
                      ("n_steps", pa.int32()), ("solved", pa.bool_())])  # fmt: skip


STEP = [{"episode_id": "", "reply_ids": [1], "action_type": "", "action": "", "format_ok": True, "valid": True, "observation": ""}]


@pytest.fixture(scope="module")
def usual() -> Side:
    return played(1)


def found(reference: Side, current: Side) -> dict[str, dict[str, Any]]:
    return {one["column"]: one for one in compare_sides(reference, current, LIMITS, "warm")}


def beyond(reference: Side, current: Side) -> dict[str, str]:
    return {name: one["level"] for name, one in found(reference, current).items() if one["level"] != "ok"}


def test_the_same_policy_again_does_not_drift(usual: Side) -> None:
    assert beyond(usual, played(2)) == {}
    assert all(one["observed"] == 0 for one in found(usual, usual).values() if one["column"] != "observations")


FAULTS: dict[str, tuple[Callable[[], Side], str, str]] = {
    "a policy that collapsed to one action": (lambda: played(3, shares=(0.0, 0.0, 0.0, 0.0, 1.0)), "action_types", "fail"),
    "another mix of actions": (lambda: played(3, shares=(0.2, 0.2, 0.2, 0.2, 0.2)), "action_types", "warn"),
    "episodes that go on for ever": (lambda: played(3, longer=3.0), "episode_length", "fail"),
    "episodes that are a bit longer": (lambda: played(3, longer=1.2), "episode_length", "warn"),
    "replies twice as long": (lambda: played(3, wordy=2.0), "tokens_per_step", "fail"),
    "actions that are not admissible": (lambda: played(3, invalid=0.4), "invalid_share", "warn"),
    "refusals in one stratum": (lambda: played(3, mute={"cool": 0.3}), "refusal_share", "warn"),
    "a policy that says nothing": (lambda: played(3, mute=dict.fromkeys(("heat", "cool", "put"), 0.95)), "refusal_share", "fail"),
    "success lost": (lambda: played(3, success=0.2), "success", "warn"),
    "another environment": (lambda: played(3, room="Raum"), "observations", "warn"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_drift_is_seen_by_its_column(fault: str, usual: Side) -> None:
    make, column, level = FAULTS[fault]
    assert beyond(usual, make()).get(column) == level


def test_the_stratum_that_refuses_is_named(usual: Side) -> None:
    by = found(usual, played(3, mute={"cool": 0.3}))["refusal_share"]["by"]
    assert max(by, key=lambda name: by[name]["difference"]) == "cool" and by["heat"]["difference"] < 0.05


def test_on_small_data_a_large_score_is_chance() -> None:
    few = [found(played(seed, 12), played(seed + 50, 12)) for seed in range(4)]
    drifted = [one for run in few for one in run.values() if one["level"] != "ok"]
    large = [one for run in few for one in run.values() if one["chance"] is not None]
    assert len(large) >= 4 and len(drifted) <= len(large) / 4


def test_strata_with_few_episodes_say_nothing(usual: Side) -> None:
    assert set(found(usual, played(3, 3 * (FEW - 1)))["success"]["by"]) == set()


def test_methods_do_not_change_with_the_size_of_the_data() -> None:
    for size in (40, 1500):  # Evidently's own choice changes at 1000
        methods = {name: one["method"] for name, one in found(played(1, size), played(2, size)).items()}
        assert methods == {name: COLUMNS[name].method for name in methods} and len(methods) == 7


def test_scores_are_those_of_evidently_and_lots_are_scored_alike(usual: Side) -> None:
    from scipy.stats import wasserstein_distance

    from monitoring.drift import _MEASURES

    other = played(3, longer=1.3, shares=(0.1, 0.3, 0.3, 0.2, 0.1))
    expected = wasserstein_distance(usual.columns["episode_length"].values, other.columns["episode_length"].values)
    assert found(usual, other)["episode_length"]["observed"] == pytest.approx(expected / usual.columns["episode_length"].values.std(), abs=1e-6)
    for name in ("episode_length", "action_types", "success", "refusal_share"):
        one, two = usual.columns[name], other.columns[name]
        measure = _MEASURES[COLUMNS[name].kind](COLUMNS[name], one, two, (usual, other))
        truth = np.arange(len(one.values) + len(two.values)) >= len(one.values)
        assert measure.lot is not None and measure.lot(truth) == pytest.approx(measure.observed, abs=1e-6)


def test_lengths_that_never_varied_do_not_drift_without_end() -> None:
    stuck = Side(np.array(["t"] * 40, object), np.array(["put"] * 40, object), {"episode_length": Column(np.full(40, 3.0), np.arange(40))})
    moved = Side(stuck.tasks, stuck.strata, {"episode_length": Column(np.full(40, 3.5), np.arange(40))})
    assert found(stuck, moved)["episode_length"]["observed"] == pytest.approx(0.5)


def test_numbers_of_one_side_alone() -> None:
    assert effective_samples(np.zeros(8)) == pytest.approx(1.0) and effective_samples(np.array([0.0] * 99 + [1000.0])) == pytest.approx(0.01)
    assert k3(np.zeros(3)) == 0.0 and k3(np.log(np.array([2.0]))) == pytest.approx(1 - np.log(2)) and np.isfinite(k3(np.array([1e4])))
    assert auc(np.array([0.0, 1.0]), np.array([2.0, 3.0])) == 1.0 and auc(np.array([1.0, 1.0]), np.array([1.0])) == 0.5
    rng = np.random.default_rng(0)
    sides = [Side(np.zeros(0, object), np.zeros(0, object), {name: Column(rng.normal(0, width, 500), np.arange(500)) for name in ("effective_samples", "kl")})
             for width in (0.1, 2.5)]  # fmt: skip
    assert beyond(sides[0], sides[0]) == {} and beyond(sides[0], sides[1]) == {"effective_samples": "warn", "kl": "warn"}


def test_credit_is_compared_where_it_is_there() -> None:
    ids = [f"e{i // 10}" for i in range(500)]
    table = pa.table({"episode_id": ids, "cost": np.linspace(0, 100, 500), "weight": np.ones(500)})
    before = Side(np.zeros(0, object), np.zeros(0, object), credit_columns({"meter": table}))
    moved = credit_columns({"meter": table.set_column(1, "cost", pa.array(np.linspace(100, 200, 500))), "critic": pa.table({"episode_id": ids, "value": np.zeros(500)})})
    after = Side(np.zeros(0, object), np.zeros(0, object), moved)
    assert set(before.columns) == {"meter_cost", "credit_weight"} and set(after.columns) == {"meter_cost", "credit_weight", "value"}
    assert beyond(before, after) == {"meter_cost": "warn"}
    assert credit_columns({}) == {}


def test_thousands_of_kinds_of_actions_are_told_as_a_few() -> None:
    one, two = common_types(np.array(["go"] * 50 + [f"x{i}" for i in range(500)], object), np.array(["go"] * 9, object))
    assert len(set(one) | set(two)) == MAX_TYPES and (one == OTHER).sum() > 400


def test_texts_become_rows_of_length_one_whatever_they_hold() -> None:
    features = text_features(np.array(["", "You see a lamp", "you SEE a\tlamp", "<script>\x1b[31m\u2028" + "a" * 100_000], object))
    assert np.linalg.norm(features, axis=1).round(5).tolist() == [1.0] * 4 and (features[1] == features[2]).all()


def test_the_verdict_and_its_page_hold_no_clock_no_address_and_harmless_text(usual: Side) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m"
    strange = played(3)
    strange.columns["action_types"] = Column(np.full(300, hostile, object), np.arange(300))
    columns = compare_sides(usual, strange, LIMITS, "warm")
    result = verdict(columns)
    assert result["status"] == "fail" and not result["passed"]
    assert verdict(compare_sides(usual, strange, LIMITS, "warm")) == result == json.loads(json.dumps(result, allow_nan=False))
    page = drift_page("Round 1: drift", {**result, "note": None})
    assert "<script" not in page and "\x1b" not in page and "&lt;script&gt;" in page and "//" not in page.replace("<!doctype", "")
    assert drift_page("Round 1: drift", {**verdict([]), "note": "nothing to compare with"}).count("nothing to compare with") == 1


def test_evidently_is_the_real_one_loaded_without_its_server_and_whole_for_others_afterwards() -> None:
    code = (
        "import sys; from monitoring.drift_methods import score, stattests; import numpy as np\n"
        "assert score('wasserstein', np.arange(5.0), np.arange(5.0) + 1) > 0\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'litestar', 'openai', 'plotly'}, loaded & {'litestar', 'openai', 'plotly'}\n"
        "assert 'evidently' not in sys.modules and 'evidently.legacy.calculations.stattests' in sys.modules\n"
        "assert 'site-packages' in stattests().__file__\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_evidently_that_is_not_installed_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from monitoring import drift_methods

    monkeypatch.setattr(drift_methods.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RatchetError, match="drift.enabled"):
        drift_methods._package("evidently")


def test_nothing_played_is_nothing_compared(usual: Side) -> None:
    nobody = side_of(EPISODES.empty_table(), pa.Table.from_pylist(STEP[:0], schema=pa.Table.from_pylist(STEP).schema))
    assert nobody.count == 0 and compare_sides(usual, nobody, LIMITS, "warm") == []
    assert verdict([]) == {"passed": True, "status": "ok", "skipped": None, "columns": []}


def test_a_score_of_nothing_is_nothing() -> None:
    assert score("rate_difference", np.zeros(0), np.ones(3)) == 0.0 and score("domain_auc", np.zeros(0), np.ones(3)) == 0.5
