"""What estimators see of episodes as they were played."""

import numpy as np

from ratchet.credit.batch import batch_of
from ratchet.episodes.files import table_of

EPISODES = [
    {"episode_id": "a", "group_id": "g", "stratum": "put", "n_steps": 3, "solved": True, "score": 1.0, "truncated": False},
    {"episode_id": "b", "group_id": "g", "stratum": None, "n_steps": 1, "solved": False, "score": 0.25, "truncated": True},
]
STEPS = [
    {"episode_id": "a", "t": 0, "observation": "x", "prompt_ids": [1] * 5, "reply_ids": [2, 3], "entropy": [1.0, 2.0], "score": 0.0},
    {"episode_id": "a", "t": 1, "observation": "x y", "prompt_ids": [1] * 2, "reply_ids": [2], "entropy": [0.5], "score": 0.5},
    {"episode_id": "a", "t": 2, "observation": "", "prompt_ids": [], "reply_ids": [], "entropy": [], "score": 0.5},
    {"episode_id": "b", "t": 0, "observation": "x", "prompt_ids": [1] * 4, "reply_ids": [7] * 3, "entropy": None, "score": -1.0},
]


def test_a_batch_holds_what_was_read_written_and_unsure() -> None:
    found = batch_of(EPISODES, table_of("steps", STEPS), reward="solved", max_length=50)
    assert found.observations == [["x", "x y", ""], ["x"]] and list(found.groups) == ["g", "g"] and list(found.stratum) == ["put", ""]
    np.testing.assert_array_equal(found.entropy[0], [1.5, 0.5, np.nan])
    assert np.isnan(found.entropy[1]).all() and found.n_tokens == [3, 3] and found.length == [10, 7] and found.max_length == 50
    assert found.truncated == [False, True] and found.rewards == [1.0, 0.0]


def test_episodes_keep_their_order_and_what_is_not_asked_for_is_left_out() -> None:
    table = table_of("steps", STEPS)
    assert batch_of(EPISODES[::-1], table, reward="solved").observations == [["x"], ["x", "x y", ""]]
    assert batch_of(EPISODES[1:], table, reward="solved").n_tokens == [3]
    assert batch_of([], table.slice(0, 0), reward="score").observations == []


def test_a_verified_outcome_is_the_last_steps_and_a_score_is_of_the_step_that_raised_it() -> None:
    solved = batch_of(EPISODES, table_of("steps", STEPS), reward="solved").step_rewards
    assert [one.tolist() for one in solved] == [[0.0, 0.0, 1.0], [0.0]]
    score = batch_of(EPISODES, table_of("steps", STEPS), reward="score").step_rewards
    assert [one.tolist() for one in score] == [[0.0, 0.5, 0.5], [0.25]]
    unknown = table_of("steps", [{**step, "score": None} for step in STEPS])
    assert [one.tolist() for one in batch_of(EPISODES, unknown, reward="score").step_rewards] == [[0.0, 0.0, 1.0], [0.25]]
