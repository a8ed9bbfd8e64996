"""What a buffer takes, once, and in whose tokens; how older episodes count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.critic.buffer import EXPERT, FAILURE, OWN, POOL, Part, assemble, in_tokens, is_held_out, one_sided, step_ratios, strongest
from ratchet.episodes.files import table_of
from ratchet.episodes.labels import label
from tests.models import tiny

LIMITS: dict[str, Any] = {"round": 3, "seed": 1, "held_out_share": 0.0, "max_tokens": 100}


def part(source: str, *names: str, solved: bool = True, policy: str = "actor", played: int = 3, **more: Any) -> Part:
    """Episodes of two steps, two tokens read and three written at each."""
    own = {"tokenizer_id": "t", "error": None, "n_steps": 2, "n_tokens": 6, **more}
    episodes = [{"episode_id": name, "task_id": f"task {name}", "policy_id": policy, "round": played, "solved": solved, **own} for name in names]
    step = {"observation": "you see a mug", "reply": "look\n> look", "prompt_ids": [1, 2], "reply_ids": [3, 4, 5], "logprobs": [-1.0, -1.0, -1.0]}
    flags = {"format_ok": True, "valid": True, "repeated": False, "policy_version": f"{policy}@{played}"}
    steps = [{"episode_id": name, "t": t, **step, **flags} for name in names for t in range(2)]
    return Part(source, table_of("episodes", episodes), table_of("steps", steps))


def test_an_episode_belongs_to_the_first_part_that_has_it_and_its_age_is_in_rounds() -> None:
    parts = [part(EXPERT, "a", policy="expert", played=0), part(OWN, "b", "c"), part(FAILURE, "c", "d", solved=False, played=2)]
    episodes, steps, rows = assemble(parts, **LIMITS)
    assert rows.select(["episode_id", "source", "age"]).to_pylist() == [
        {"episode_id": "a", "source": "expert", "age": 0},
        {"episode_id": "b", "source": "own", "age": 0},
        {"episode_id": "c", "source": "own", "age": 0},
        {"episode_id": "d", "source": "failure", "age": 1},
    ]
    assert episodes["episode_id"].to_pylist() == list("abcd") and steps["episode_id"].to_pylist() == list("aabbccdd")
    assert rows["policy_version"].to_pylist() == ["expert@0", "actor@3", "actor@3", "actor@2"]


def test_errors_and_episodes_beyond_the_budget_are_left_out() -> None:
    parts = [part(OWN, "a"), part(OWN, "b", error="crash"), part(OWN, "c")]
    assert assemble(parts, **LIMITS)[0]["episode_id"].to_pylist() == ["a", "c"]
    assert assemble(parts, **{**LIMITS, "max_tokens": 9})[0].num_rows == 0


def test_tasks_are_held_out_by_their_name_alone() -> None:
    names = [f"task {number}" for number in range(400)]
    chosen = {name for name in names if is_held_out(name, 1, 0.15)}
    assert 30 < len(chosen) < 90 and chosen == {name for name in reversed(names) if is_held_out(name, 1, 0.15)}
    assert chosen != {name for name in names if is_held_out(name, 2, 0.15)} and not any(is_held_out(name, 1, 0.0) for name in names)


def test_what_another_tokenizer_wrote_is_encoded_anew_and_the_rest_stays_as_it_was_generated() -> None:
    template = tiny.template()
    mixed = part(EXPERT, "a", "b")
    ids = [template.tokenizer_id, "another"]
    mixed = Part(EXPERT, mixed.episodes.set_column(mixed.episodes.schema.get_field_index("tokenizer_id"), "tokenizer_id", pa.array(ids)), mixed.steps)
    found = in_tokens(mixed, template)
    assert set(found.episodes["tokenizer_id"].to_pylist()) == {template.tokenizer_id}
    steps = {(row["episode_id"], row["t"]): row for row in found.steps.to_pylist()}
    assert steps["a", 0]["reply_ids"] == [3, 4, 5] and steps["a", 0]["logprobs"] == [-1.0] * 3
    assert steps["b", 0]["reply_ids"] == template.replies_ids(["look\n> look"])[0] and steps["b", 0]["logprobs"] == []
    assert steps["b", 0]["prompt_ids"] == template.observation_ids("you see a mug", True) != steps["b", 1]["prompt_ids"]
    tokens = {row["episode_id"]: row["n_tokens"] for row in found.episodes.to_pylist()}
    assert tokens == {"a": 6, "b": 2 * len(steps["b", 0]["reply_ids"])}


def test_the_strongest_policy_is_that_of_most_success() -> None:
    both = [part(POOL, "a", policy="small"), part(POOL, "b", policy="random", solved=False), part(POOL, "c", policy="big")]
    harvest = Part(POOL, pa.concat_tables([one.episodes for one in both]), pa.concat_tables([one.steps for one in both]))
    assert strongest(harvest, ()) == "big" and strongest(harvest, ("big",)) == "small" and strongest(both[1], ()) is None


def test_a_buffer_of_one_outcome_or_none_says_why_it_teaches_nothing() -> None:
    empty, steps, rows = assemble([], **LIMITS)
    assert empty.num_rows == rows.num_rows == label(empty, steps).num_rows == 0
    assert "holds no episode" in (one_sided(empty) or "")
    assert "all 2 episodes of the buffer failed" in (one_sided(part(OWN, "a", "b", solved=False).episodes) or "")
    assert "solved their task" in (one_sided(part(OWN, "a").episodes) or "")
    assert one_sided(pa.concat_tables([part(OWN, "a").episodes, part(OWN, "b", solved=False).episodes])) is None


@pytest.mark.parametrize(("now", "limit", "expected"), [(-1.0, 1.0, 1.0), (-1.2, 1.0, np.exp(-0.6)), (-0.8, 1.0, 1.0), (-0.8, 5.0, np.exp(0.6))])
def test_steps_of_older_episodes_count_by_a_truncated_ratio(now: float, limit: float, expected: float) -> None:
    one = part(OWN, "a")
    start = table_of("logprobs", [{"episode_id": "a", "t": t, "logprobs": [now] * 3} for t in range(2)])
    np.testing.assert_allclose(step_ratios(one.steps, start, limit)["a"], expected, rtol=1e-6)
    unknown = one.steps.set_column(one.steps.schema.get_field_index("logprobs"), "logprobs", pa.array([[], []], pa.list_(pa.float32())))
    assert step_ratios(unknown, start, limit)["a"].tolist() == [1.0, 1.0]
