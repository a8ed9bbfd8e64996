"""`ratchet play`: a person plays, on a terminal or through standard input."""

import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.commands import root
from flows.evaluating import matching_tasks
from flows.text import one_line, visible
from ratchet.envs.base import Task, Turn
from ratchet.envs.benchmarks import benchmark, look_in, open_pool
from ratchet.envs.pool import EnvPool, Failure
from ratchet.errors import RatchetError
from ratchet.rendering import render_run
from ratchet.settings import Settings, parse

TASKS = 8  # prepared to choose from; more only where a pattern asks for a kind that is not among them
MANY_TASKS = 256
HELP = "write an action; ? lists admissible ones (?TEXT only those that hold TEXT), . ends"


def play(env: str | None, split: str, seed: int | None, preset: str | None, settings: list[str]) -> None:
    """`ratchet play`. Raises RatchetError for an unknown environment, a kind of task that there is not, and where it breaks."""
    name, _, pattern = (env or "").partition("/")
    checkout = root()
    look_in(checkout)
    params = parse(render_run(checkout, preset, [*([f"env.name={name}"] if name else []), *settings]))
    number = random.randrange(2**31) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="ratchet-play-") as scratch:
        task = choose_task(Path(scratch), params, split, pattern, number)
        with open_pool(Path(scratch), params.env, [split], admissible=True) as pool:
            Game(pool, task, params.env.max_steps).run(number)


def choose_task(folder: Path, settings: Settings, split: str, pattern: str, seed: int) -> Task:
    """A task of `split` whose id or kind matches `pattern` (`*` and `?` stand for any text), prepared into `folder`."""
    tasks: list[Task] = []
    for count in (TASKS, MANY_TASKS):
        counts = dict.fromkeys(settings.prepare.games.model_dump(), 1)
        if split not in counts:
            raise RatchetError(f"--split {split}: no such split; there is {', '.join(counts)}")
        shutil.rmtree(folder)
        folder.mkdir()
        tasks = benchmark(settings.env.name).prepare(folder, settings.env, counts | {split: count}, seed)[split]
        matching = matching_tasks(tasks, pattern)
        if matching:
            return random.Random(seed).choice(matching)
    kinds = sorted({task.stratum for task in tasks})
    raise RatchetError(f"{settings.env.name}/{pattern}: no task of {split} matches; there is {', '.join(kinds[:20])}")


@dataclass
class Game:
    """One episode of a person."""

    pool: EnvPool
    task: Task
    max_steps: int
    steps: int = 0

    def run(self, seed: int) -> None:
        """Until the environment ends it, the limit of steps, `.`, or the end of the input."""
        one = self.task
        print(f"{one_line(one.env)} {one_line(one.task_id)} ({one_line(one.stratum)}), at most {self.max_steps} steps; again with --seed {seed}")
        print(HELP)
        turn = self._told(self.pool.reset([0], [one])[0])
        for line in lines():
            if line == ".":
                break
            if line.startswith("?"):
                print("\n".join(f"  {one_line(action)}" for action in turn.admissible if line[1:].strip() in action) or "  (none)")
            elif line:
                turn = self._step(line, turn)
                if turn.done or self.steps >= self.max_steps:
                    break
        print(f"{'solved' if turn.solved else 'not solved'} after {self.steps} steps, score {turn.score:g}")

    def _step(self, action: str, before: Turn) -> Turn:
        turn = self._told(self.pool.step([0], [action])[0])
        self.steps += 1
        notes = [] if turn.valid else ["not admissible"]
        notes += [f"score {turn.score:g}"] if turn.score != before.score else []
        if notes:
            print(f"  ({', '.join(notes)})")
        return turn

    def _told(self, turn: Turn | Failure) -> Turn:
        if isinstance(turn, Failure):
            raise RatchetError(f"the environment failed after {self.steps} steps ({turn.kind}: {one_line(turn.reason)})")
        print(f"\n{visible(turn.observation)}")
        return turn


def lines() -> Iterator[str]:
    """Stripped lines, asked for with a prompt on a terminal and echoed where they come from a file or a pipe."""
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        if not is_terminal:
            print(one_line(line))
        yield line.strip()
