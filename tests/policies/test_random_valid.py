"""The random policy takes each admissible command equally often and the same ones whenever it is asked."""

from __future__ import annotations

from collections import Counter

import pytest

from ratchet.envs.base import Turn
from ratchet.errors import RatchetError
from ratchet.policies.random_valid import RandomPolicy
from tests.envs.toy import task

TURN = Turn("x", ("a", "b", "c", "d"))


def actions(seed: int, episode: str, steps: int = 20) -> list[str]:
    player = RandomPolicy(seed, episode)
    player.reset(task(0), TURN)
    return [player.act(TURN)[1] for _ in range(steps)]


def test_the_same_episode_gets_the_same_actions() -> None:
    assert actions(1, "e") == actions(1, "e")
    assert len({tuple(actions(seed, name)) for seed in (1, 2) for name in ("e", "f")}) == 4


def test_every_admissible_action_is_equally_likely() -> None:
    counts = Counter(action for number in range(400) for action in actions(1, str(number), 10))
    assert set(counts) == set("abcd") and all(abs(count - 1000) < 140 for count in counts.values())


def test_it_has_no_thought() -> None:
    assert RandomPolicy(1, "e").act(TURN)[0] == ""


def test_without_admissible_commands_it_says_what_to_do() -> None:
    with pytest.raises(RatchetError, match="admissible=True"):
        RandomPolicy(1, "e").act(Turn("x", ()))
