"""Labels by rules: tokens still to go against the vectors, and the first rule that applies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ratchet.episodes.files import table_of
from ratchet.episodes.labels import label, retrospective_reward, ttg_labels

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "ttg_labels.json").read_text())


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_tokens_to_go_equal_the_vectors(case: dict) -> None:
    found = ttg_labels(np.array(case["n"]), case["success"])
    assert found == [one["remaining_tokens"] for one in case["labels"]]
    assert all(one["completable"] == case["success"] for one in case["labels"])


def test_the_first_rule_that_applies_decides() -> None:
    yes, no = True, False
    table = {(no, no, yes): -0.3, (no, yes, no): -0.3, (yes, no, yes): -0.2, (yes, no, no): -0.2, (yes, yes, yes): -0.1, (yes, yes, no): 0.0}
    found = retrospective_reward(*(np.array(column) for column in zip(*table, strict=True)))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(list(table.values()), np.float32))


def test_a_benchmark_may_have_penalties_of_its_own() -> None:
    episodes = table_of("episodes", [{"episode_id": "a", "solved": False}])
    flags = [(False, True, False), (True, False, False), (True, True, True), (True, True, False)]
    rows = [{"episode_id": "a", "t": t, "format_ok": one, "valid": two, "repeated": three} for t, (one, two, three) in enumerate(flags)]
    found = label(episodes, table_of("steps", rows), (-0.3, 0.0, -0.5))["r_aux"].to_numpy()
    np.testing.assert_array_equal(found, np.array([-0.3, 0.0, -0.5, 0.0], np.float32))


def test_the_sidecar_counts_generated_tokens_alone_and_no_failure_has_any() -> None:
    episodes = table_of("episodes", [{"episode_id": "a", "solved": True}, {"episode_id": "b", "solved": False}])
    flags = {"format_ok": True, "valid": True, "repeated": False}
    steps = table_of("steps", [{"episode_id": e, "t": t, "prompt_ids": [1] * 50, "reply_ids": [2] * n, **flags}
                               for e, t, n in (("a", 0, 3), ("a", 1, 0), ("a", 2, 4), ("b", 0, 5))])
    found = label(episodes, steps)
    assert found["ttg"].to_pylist() == [7, 4, 4, None]
    assert found["r_aux"].to_pylist() == [0.0] * 4
