"""Shards that are played in turns: the same bytes as alone, and the time of the environments beside that of the model."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.clock import CLOCK
from ratchet.envs.base import Turn
from ratchet.envs.pool import EnvPool
from ratchet.episodes.files import write_table
from ratchet.models.build import from_scratch
from ratchet.policies.base import Reply
from ratchet.policies.scripted import ScriptedPolicy
from ratchet.rollout.play import Job, Tables, play, play_alternating
from tests.envs.processes import stop
from tests.models import tiny
from tests.rollout.test_play import Scripted, jobs, language_model, scripted

SHARDS = [jobs(3, samples=2, seed=1), jobs(3, seed=2), [], jobs(2, samples=2, seed=3), jobs(1, seed=4)]
MAX_STEPS = 4


def pool_of(workers: int = 1, limit_s: float = 10.0, **kwargs: Any) -> EnvPool:
    return EnvPool("tests.envs.toy:make", kwargs, workers, limit_s)


def alternating(policies: Sequence[Any], pool: EnvPool, shards: Sequence[Sequence[Job]] = SHARDS, rows: int = 4) -> list[Tables]:
    """The shards' tables, in their order."""
    played = dict(play_alternating(shards, policies, pool, max_steps=MAX_STEPS, rows=rows))
    return [played[place] for place in range(len(shards))]


def bytes_of(tables: Sequence[Tables], folder: Path) -> list[bytes]:
    found = []
    for both in tables:
        for kind, table in zip(("episodes", "steps"), both, strict=True):
            write_table(folder / kind, kind, table)
            found.append((folder / kind).read_bytes())
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Each shard's files where it is played alone, by a policy of its own."""
    with pool_of() as pool:
        tables = [play(shard, language_model(rows=4), pool, max_steps=MAX_STEPS, rows=4) for shard in SHARDS]
    return bytes_of(tables, tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_shard_is_the_same_bytes_alone_and_beside_others_whenever_environments_answer(workers: int, alone: list[bytes], tmp_path: Path) -> None:
    policy = language_model(rows=4)
    with pool_of(workers, longest_s=0.01) as pool:
        assert bytes_of(alternating([policy, policy.twin()], pool), tmp_path) == alone


def test_three_shards_at_once_are_the_same_bytes_too(alone: list[bytes], tmp_path: Path) -> None:
    policy = language_model(rows=4)
    with pool_of(2) as pool:
        assert bytes_of(alternating([policy, policy.twin(), policy.twin()], pool), tmp_path) == alone


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_stands_between_two_turns_changes_no_byte(
    workers: int, alone: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, acts = language_model(rows=4), []
    act = policy.act
    with pool_of(workers, limit_s=0.5) as pool:

        def sabotage(rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
            acts.append(rows)
            if len(acts) in (2, 4):
                owing = pool._processes[0].channel.socket  # the other shard's ticket is open
                assert select.select([owing], [], [], 10.0)[0], "it has answered, so it is in no step"
                stop(pool.pids()[0])
            return act(rows, turns)

        monkeypatch.setattr(policy, "act", sabotage)
        assert bytes_of(alternating([policy, language_model(rows=4)], pool), tmp_path) == alone
        assert pool.counts == {"crashes": 0, "timeouts": 2, "errors": 0, "replaced": 2}


def test_a_shard_that_ends_is_told_at_once_and_the_next_one_takes_its_place() -> None:
    seen: list[tuple[int, list[str]]] = []

    class Watching(ScriptedPolicy):
        number = 0

        def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
            seen.append((self.number, [turn.observation.split(":")[0] for turn in turns]))
            return super().act(rows, turns)

    policies = [Watching(lambda seed, name: Scripted(["wait"]), policy_id="s", version="v") for _ in range(2)]
    policies[1].number = 1
    shards = [[Job(job.task, seed) for job in jobs(1)] for seed in range(3)]
    with pool_of() as pool:
        played = play_alternating([[*shards[0], *shards[0]], *shards[1:]], policies, pool, max_steps=2, rows=1)
        assert [next(played)[0], len(seen)] == [1, 4] and seen == [(0, ["toy-0"]), (1, ["toy-0"])] * 2
        assert [place for place, _ in played] == [0, 2]
    assert [number for number, _ in seen] == [0, 1, 0, 1, 0, 0, 1, 1]


class Slow(ScriptedPolicy):
    """As a model that takes its time."""

    def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
        time.sleep(0.08)
        return super().act(rows, turns)


def test_environments_step_while_the_model_works_and_only_what_is_waited_for_counts_as_theirs() -> None:
    def measured(count: int) -> tuple[float, float]:
        policies = [Slow(lambda seed, name: Scripted(["wait"]), policy_id="s", version="v") for _ in range(count)]
        with pool_of(delay_s=0.04) as pool:
            pool.reset([0], [jobs(1)[0].task])  # the worker starts
            CLOCK.clear()
            alternating(policies, pool, [jobs(2), jobs(2)], rows=2)
            return time.monotonic() - CLOCK.began, CLOCK.seconds["environment"]

    (one_after_the_other, waited), (in_turns, still_waited) = measured(1), measured(2)
    assert in_turns < 0.75 * one_after_the_other  # 0.7 s and 1.3 s on an idle machine
    assert waited > 0.6 and still_waited < 0.5 * waited
    assert CLOCK.counts["episodes"] == 4 and CLOCK.counts["env_steps"] == 16


def test_nothing_to_play_is_nothing() -> None:
    with pool_of() as pool:
        assert list(play_alternating([], [scripted("up")], pool, max_steps=3, rows=2)) == []
        [(place, (episodes, steps))] = play_alternating([[]], [scripted("up")], pool, max_steps=3, rows=2)
        assert (place, episodes.num_rows, steps.num_rows, pool.pids()) == (0, 0, 0, [])


def test_a_shard_is_the_same_bytes_whatever_its_policy_played_before(tmp_path: Path) -> None:
    """What an engine keeps of earlier shards (the order of its rows, how long its cache has grown) would order a product's sums anew."""
    limits: dict[str, Any] = {"max_steps": 24, "rows": 12}
    words = len(tiny.template().tokenizer)
    model = tiny.sharpened(from_scratch(layers=2, width=48, heads=2, kv_heads=1, mlp=96, vocab=words, context=512, seed=1, begin=1, end=4, pad=0))
    fresh, used = (language_model(rows=12, max_tokens=401, max_reply_tokens=16, model=model) for _ in range(2))
    shard = jobs(10, samples=2, seed=61)
    with pool_of(goal=9) as pool:
        play(jobs(9, samples=2, seed=6), used, pool, **limits)
        alone, after = (bytes_of([play(shard, one, pool, **limits)], tmp_path) for one in (fresh, used))
    assert after == alone
