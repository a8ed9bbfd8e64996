"""How far an offline update went: the gates that the stop rule reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ratchet.learners.batches import OBSERVATION, REPLY, Sequence
from ratchet.learners.offline import moved


def episode(name: str, old: list[float]) -> Sequence:
    """One observed token, then a reply of a token a step."""
    n = len(old)
    role = np.array([OBSERVATION, *[REPLY] * n], np.int8)
    logprobs = np.array([0.0, *old], np.float32)
    return Sequence(name, np.arange(n + 1), role, np.array([0, *range(n)], np.int32), logprobs, np.zeros(n, np.float32))


def learner(now: dict[str, list[float]]) -> Any:
    return SimpleNamespace(logprobs=lambda sequences: {one.episode_id: np.array([0.0, *now[one.episode_id]], np.float32) for one in sequences})


def test_a_token_of_an_experts_that_the_start_took_for_impossible_does_not_decide_the_effective_share() -> None:
    sequences = [episode("own", [-0.5] * 20), episode("expert", [-9.0, -0.5])]
    now = learner({"own": [-0.45, -0.55] * 10, "expert": [-3.0, -0.5]})
    ratios = np.exp(np.array([0.05, -0.05] * 10))
    assert moved(now, sequences, {"own"}, "token")["ess"] == pytest.approx(ratios.sum() ** 2 / (20 * (ratios**2).sum()), rel=1e-6)
    assert moved(now, sequences, {"own", "expert"}, "token")["ess"] < 0.06


def test_the_divergence_is_of_all_episodes_and_the_share_is_left_out_where_the_actor_played_none() -> None:
    sequences, now = [episode("expert", [-1.0, -1.0])], learner({"expert": [-1.0, -2.0]})
    told = moved(now, sequences, set(), "token")
    p, q = np.exp(-2.0), np.exp(-1.0)
    assert told == {"kl": pytest.approx((p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))) / 2, rel=1e-5)}
