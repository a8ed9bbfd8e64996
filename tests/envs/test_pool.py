"""A hang or a crash costs one episode; all others go on as if nothing had happened; nothing is left behind."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import EnvPool, Failure
from ratchet.envs.worker import PROGRESS, Worker
from ratchet.errors import RatchetError
from tests.envs.processes import alive, gone, stop
from tests.envs.toy import Toy, task

ROOT = Path(__file__).parents[2]
TOY = "tests.envs.toy:make"


def pool_of(workers: int = 1, limit_s: float = 30.0, admissible: bool = False, **kwargs: object) -> EnvPool:
    return EnvPool(TOY, kwargs, workers, limit_s, admissible)


def started(pool: EnvPool, rows: int) -> list[int]:
    assert all(isinstance(turn, Turn) for turn in pool.reset(range(rows), [task(row) for row in range(rows)]))
    return list(range(rows))


def observations(turns: list[Turn | Failure]) -> list[str]:
    return [turn.observation if isinstance(turn, Turn) else turn.kind for turn in turns]


def test_results_come_in_the_order_asked() -> None:
    with pool_of(workers=2) as pool:
        turns = pool.reset([5, 0, 3], [task(50), task(0), task(30)])
        assert observations(turns) == ["toy-50: ", "toy-0: ", "toy-30: "]
        assert observations(pool.step([3, 5], ["a", "b"])) == ["toy-30: a", "toy-50: b"]


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_gives_the_same_turns(workers: int, tmp_path: Path) -> None:
    def play(count: int, folder: Path) -> list[list[Turn | Failure]]:
        folder.mkdir()
        with pool_of(count, 1.0, once=str(folder)) as pool:
            rows = started(pool, 8)
            actions = [["up"] * 8, ["x", "up", "exit", "up", "raise", "up", "wait", "up"], ["up"] * 8]
            answers = []
            for wanted in actions:
                answers.append(pool.step(rows, [wanted[row] for row in rows]))
                rows = [row for row, turn in zip(rows, answers[-1], strict=True) if isinstance(turn, Turn)]
            return answers

    assert play(1, tmp_path / "one") == play(workers, tmp_path / "more")


def test_admissible_commands_come_only_where_asked_for() -> None:
    with pool_of() as without, pool_of(admissible=True) as with_them:
        assert without.reset([0], [task(0)])[0].admissible == ()
        assert with_them.reset([0], [task(0)])[0].admissible == ("up", "wait")


@pytest.mark.parametrize(("action", "kind", "reason"), [("exit", "crash", "exit code 3"), ("nested", "crash", "exit code 4"),
                                                         ("hang", "timeout", "0.4 s"), ("raise", "error", "ValueError: cannot raise")])
def test_a_fault_ends_its_own_episode_only(action: str, kind: str, reason: str) -> None:
    with pool_of(limit_s=0.4) as pool:
        rows = started(pool, 5)
        pool.step(rows, ["up"] * 5)
        turns = pool.step(rows, ["up", "x", action, "up", "y"])
        failure = turns.pop(2)
        assert isinstance(failure, Failure) and failure.kind == kind and reason in failure.reason
        assert observations(turns) == ["toy-0: up up", "toy-1: up x", "toy-3: up up", "toy-4: up y"]
        assert observations(pool.step([4, 0], ["z", "z"])) == ["toy-4: up y z", "toy-0: up up z"]
        expected = {"crashes": kind == "crash", "timeouts": kind == "timeout", "errors": kind == "error", "replaced": kind != "error"}
        assert pool.counts == expected
        assert observations(pool.reset([2], [task(7)])) == ["toy-7: "], "the row can be used again"


def test_several_faults_in_one_batch_are_each_found() -> None:
    with pool_of(limit_s=0.4) as pool:
        rows = started(pool, 4)
        assert observations(pool.step(rows, ["exit", "hang", "up", "exit"])) == ["crash", "timeout", "toy-2: up", "crash"]
        assert pool.counts == {"crashes": 2, "timeouts": 1, "errors": 0, "replaced": 3}


def test_rows_outside_the_batch_are_brought_back_too() -> None:
    with pool_of() as pool:
        started(pool, 3)
        pool.step([0, 1, 2], ["a", "b", "c"])
        assert observations(pool.step([1], ["exit"])) == ["crash"]
        assert observations(pool.step([2], ["d"])) == ["toy-2: c d"]
        assert observations(pool.step([0], ["d"])) == ["toy-0: a d"]


def test_an_episode_that_does_not_repeat_itself_fails() -> None:
    with pool_of(unstable=True) as pool:
        started(pool, 3)
        turns = pool.step([0, 1], ["exit", "up"])
        assert [turn.kind for turn in turns] == ["crash", "error"]
        later = pool.step([2], ["up"])
        assert [turn.kind for turn in later] == ["error"], "told at the row's own next step"
        with pytest.raises(RatchetError, match="reset it first"):
            pool.step([2], ["up"])


def test_a_worker_stopped_while_it_waits_costs_no_episode() -> None:
    with pool_of(workers=2, limit_s=0.5) as pool:
        rows = started(pool, 4)
        pool.step(rows, ["up"] * 4)
        stop(pool.pids()[1])
        assert observations(pool.step(rows, ["up"] * 4)) == [f"toy-{row}: up up" for row in rows]
        assert pool.counts == {"crashes": 0, "timeouts": 1, "errors": 0, "replaced": 1}


def test_a_worker_stopped_in_a_step_costs_that_episode(tmp_path: Path) -> None:
    with pool_of(limit_s=1.0, once=str(tmp_path)) as pool:
        rows = started(pool, 3)
        stopper = _stop_when(tmp_path / "toy-1.mark", pool.pids()[0])
        assert observations(pool.step(rows, ["up", "hang", "up"])) == ["toy-0: up", "timeout", "toy-2: up"]
        assert stopper.wait(5) == 0


def _stop_when(mark: Path, pid: int) -> subprocess.Popen:
    code = "import os,sys,time,signal\nwhile not os.path.exists(sys.argv[1]): time.sleep(.01)\nos.kill(int(sys.argv[2]), signal.SIGSTOP)"
    return subprocess.Popen([sys.executable, "-c", code, str(mark), str(pid)])


def test_a_worker_stopped_under_a_batch_larger_than_the_socket_is_no_deadlock() -> None:
    with pool_of(limit_s=0.5) as pool:
        rows = started(pool, 2)
        stop(pool.pids()[0])
        big = "x" * 3_000_000
        assert observations(pool.step(rows, [big, "up"])) == [f"toy-0: {big}", "toy-1: up"]


def test_an_unknown_task_is_an_error_of_its_row() -> None:
    with pool_of() as pool:
        turns = pool.reset([0, 1], [Task("toy", "1", "nowhere", "train", "", ""), task(1)])
        assert turns[0] == Failure("KeyError: 'unknown task nowhere'", "error") and observations(turns[1:]) == ["toy-1: "]


def test_a_done_episode_has_to_be_reset() -> None:
    with pool_of(goal=1) as pool:
        started(pool, 1)
        assert pool.step([0], ["up"])[0].done
        with pytest.raises(RatchetError, match="reset it first"):
            pool.step([0], ["up"])


def test_reasons_are_the_same_in_every_process() -> None:
    with pool_of(workers=2) as pool:
        rows = started(pool, 2)
        first, second = pool.step(rows, ["raise", "raise"])
        assert first == second


def test_any_text_is_an_action() -> None:
    with pool_of() as pool:
        started(pool, 1)
        for action in ["", "\x00", "\ud800", "日本 🦆", "a\nb" * 1000]:
            assert pool.step([0], [action])[0].observation.endswith(action)


def test_an_environment_that_cannot_be_built_is_one_clear_line() -> None:
    for factory, text in [("tests.envs.toy:make_broken", "no such engine"), ("tests.envs.toy:none", "none"), ("away:make", "away")]:
        with EnvPool(factory, {}, 1, 1.0) as pool, pytest.raises(RatchetError, match=text):
            pool.reset([0], [task(0)])


def test_bad_calls_are_refused() -> None:
    with pool_of() as pool, pytest.raises(RatchetError, match="twice"):
        pool.reset([0, 0], [task(0), task(1)])
    with pytest.raises(RatchetError, match="at least 1"):
        pool_of(workers=0)


def test_workers_start_only_when_needed_and_close_leaves_none() -> None:
    with pool_of(workers=3) as pool:
        assert pool.pids() == []
        pool.reset([1], [task(1)])
        assert len(pool.pids()) == 1
        started(pool, 3)
        pids = pool.pids()
        assert len(pids) == 3 and all(alive(pid) for pid in pids)
        os.kill(pids[2], signal.SIGSTOP)
    assert gone(*pids)


@pytest.fixture
def parent_with_workers() -> Iterator[tuple[subprocess.Popen, list[int]]]:
    code = (
        "import sys, time\nfrom ratchet.envs.pool import EnvPool\nfrom tests.envs.toy import task\n"
        "pool = EnvPool('tests.envs.toy:make', {}, 2, 60.0)\npool.reset([0, 1], [task(0), task(1)])\n"
        "print(*pool.pids(), flush=True)\npool.step([0], ['hang'])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    yield parent, [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="a worker in a hanging step ends with its parent on Linux only")
def test_a_killed_parent_leaves_no_worker(parent_with_workers: tuple[subprocess.Popen, list[int]]) -> None:
    parent, pids = parent_with_workers
    assert len(pids) == 2 and all(alive(pid) for pid in pids)
    time.sleep(0.2)  # one worker is inside a step that hangs, the other one waits
    parent.kill()
    assert gone(*pids)


def test_an_environment_that_raised_is_not_used_again() -> None:
    made: list[Toy] = []

    def make_and_keep() -> Toy:
        made.append(Toy())
        return made[-1]

    worker = Worker(make_and_keep, mmap.mmap(-1, PROGRESS.size), admissible=False)
    worker.play([(0, task(0)), (0, "up"), (0, task(1))])
    assert len(made) == 1, "kept over episodes"
    assert "no episode is running" in worker.play([(0, "raise"), (0, "up")])[1]
    worker.play([(0, task(2))])
    assert len(made) == 2


def test_a_worker_counts_each_item_and_the_end_of_a_batch() -> None:
    progress = mmap.mmap(-1, PROGRESS.size)
    worker = Worker(Toy, progress, admissible=False)
    worker.play([(0, task(0)), (0, "up")])
    assert PROGRESS.unpack_from(progress, 0)[0] == 3, "so that no row is blamed for what happens after its step"


def test_a_worker_imports_no_torch_and_not_the_parents_main() -> None:
    code = "import sys, ratchet.envs.worker, ratchet.envs.pool; assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_starting_takes_well_below_a_second() -> None:
    begin = time.monotonic()
    with pool_of(workers=2) as pool:
        started(pool, 2)
        assert time.monotonic() - begin < 2.0  # 0.1 s on an idle machine
