"""Two tickets may be open at once: what they bring, and what a fault costs, is the same as one after the other."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ratchet.envs.base import Turn
from ratchet.envs.pool import EnvPool
from ratchet.errors import RatchetError
from tests.envs.processes import gone, stop
from tests.envs.test_pool import observations, pool_of, started
from tests.envs.toy import task


def four_rows(pool: EnvPool) -> list[int]:
    """Of one step each, so that there is something to be brought back."""
    rows = started(pool, 4)
    pool.step(rows, ["up"] * 4)
    return rows


def end(pool: EnvPool, how: str) -> None:
    """The first worker is gone, or stands."""
    pid = pool.pids()[0]
    if how == "stopped":
        stop(pid)
    else:
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)


def test_a_submitted_step_is_played_while_its_caller_does_something_else() -> None:
    with pool_of(delay_s=0.3) as pool:
        started(pool, 1)
        begin = time.monotonic()
        ticket = pool.submit([0], ["up"])
        assert time.monotonic() - begin < 0.2
        time.sleep(0.5)
        begin = time.monotonic()
        assert observations(pool.collect(ticket)) == ["toy-0: up"]
        assert time.monotonic() - begin < 0.2


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("later_first", [False, True])
def test_tickets_of_other_rows_do_not_mix(workers: int, later_first: bool) -> None:
    with pool_of(workers, longest_s=0.02) as pool:
        started(pool, 5)
        for turn in range(1, 4):
            one, two = pool.submit([4, 0, 1], ["up", "up", "up"]), pool.submit([3, 2], ["wait", "wait"])
            if later_first:
                assert observations(pool.collect(two)) == [f"toy-3: {'wait ' * turn}".rstrip(), f"toy-2: {'wait ' * turn}".rstrip()]
            assert observations(pool.collect(one)) == [f"toy-{row}: {'up ' * turn}".rstrip() for row in (4, 0, 1)]
            if not later_first:
                assert observations(pool.collect(two)) == [f"toy-3: {'wait ' * turn}".rstrip(), f"toy-2: {'wait ' * turn}".rstrip()]


def test_a_step_and_a_reset_may_be_open_together() -> None:
    with pool_of() as pool:
        started(pool, 2)
        step, reset = pool.submit([0], ["up"]), pool.submit([1, 2], [task(8), task(9)])
        assert observations(pool.collect(reset)) == ["toy-8: ", "toy-9: "] and observations(pool.collect(step)) == ["toy-0: up"]


def test_a_row_of_an_open_ticket_and_a_ticket_that_is_closed_are_refused() -> None:
    with pool_of() as pool:
        started(pool, 2)
        ticket = pool.submit([0], ["up"])
        for payload in ("up", task(3)):
            with pytest.raises(RatchetError, match="row 0 was submitted before"):
                pool.submit([1, 0], [payload, payload])
        pool.collect(ticket)
        with pytest.raises(RatchetError, match="collected before"):
            pool.collect(ticket)
        assert observations(pool.step([1], ["up"])) == ["toy-1: up"], "what was refused has changed nothing"
        ticket = pool.submit([0], ["up"])
    with pytest.raises(RatchetError, match="closed"):
        pool.collect(ticket)


def test_the_time_of_a_ticket_counts_only_while_its_worker_is_at_it() -> None:
    with pool_of(limit_s=0.5, delay_s=0.2) as pool:
        started(pool, 8)
        one, two = pool.submit([0, 1, 2, 3], ["up"] * 4), pool.submit([4, 5, 6, 7], ["up"] * 4)
        assert observations(pool.collect(two)) == [f"toy-{row}: up" for row in range(4, 8)]  # 0.8 s after it was submitted
        assert observations(pool.collect(one)) == [f"toy-{row}: up" for row in range(4)]
        assert pool.counts == {"crashes": 0, "timeouts": 0, "errors": 0, "replaced": 0}


def test_messages_larger_than_the_socket_are_no_deadlock_with_two_tickets() -> None:
    big = "x" * 3_000_000
    with pool_of(limit_s=5.0, delay_s=0.05) as pool:
        started(pool, 2)
        one, two = pool.submit([0], [big]), pool.submit([1], [big])
        time.sleep(0.3)  # the worker writes its first answer, and nobody reads
        assert observations(pool.collect(two)) == [f"toy-1: {big}"] and observations(pool.collect(one)) == [f"toy-0: {big}"]
        assert pool.counts["replaced"] == 0


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_worker_that_is_ended_between_two_open_tickets_costs_no_episode(how: str) -> None:
    with pool_of(limit_s=0.5) as pool:
        rows = four_rows(pool)
        end(pool, how)
        one, two = pool.submit(rows[:2], ["a", "b"]), pool.submit(rows[2:], ["c", "d"])
        assert observations(pool.collect(one)) == ["toy-0: up a", "toy-1: up b"]
        assert observations(pool.collect(two)) == ["toy-2: up c", "toy-3: up d"]
        assert pool.counts == {"crashes": how == "killed", "timeouts": how == "stopped", "errors": 0, "replaced": 1}


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_worker_that_is_ended_in_a_step_costs_that_episode_and_none_of_the_other_ticket(how: str, tmp_path: Path) -> None:
    with pool_of(limit_s=1.0, once=str(tmp_path)) as pool:
        rows = four_rows(pool)
        one, two = pool.submit(rows[:2], ["hang", "b"]), pool.submit(rows[2:], ["c", "d"])
        while not (tmp_path / "toy-0.mark").exists():
            time.sleep(0.01)
        end(pool, how)
        assert observations(pool.collect(two)) == ["toy-2: up c", "toy-3: up d"]
        assert observations(pool.collect(one)) == ["crash" if how == "killed" else "timeout", "toy-1: up b"]
        assert pool.counts == {"crashes": how == "killed", "timeouts": how == "stopped", "errors": 0, "replaced": 1}


def test_a_row_that_is_lost_while_its_ticket_waits_is_told_by_that_ticket() -> None:
    with pool_of(unstable=True) as pool:
        rows = four_rows(pool)
        end(pool, "killed")
        one, two = pool.submit(rows[:1], ["a"]), pool.submit(rows[1:], ["b", "c", "d"])
        assert observations(pool.collect(one)) == ["error"] and observations(pool.collect(two)) == ["error"] * 3
        assert pool.counts["errors"] == 4


def test_what_becomes_of_an_old_episode_is_nothing_to_the_one_that_took_its_row() -> None:
    with pool_of(unstable=True) as pool:
        rows = four_rows(pool)
        end(pool, "killed")
        one, two = pool.submit([0], ["a"]), pool.submit(rows[1:], [task(7), task(8), task(9)])
        assert observations(pool.collect(one)) == ["error"]
        assert all(isinstance(turn, Turn) for turn in pool.collect(two))
        assert all(isinstance(turn, Turn) for turn in pool.step(rows[1:], ["up"] * 3))
        assert pool.counts["errors"] == 1
