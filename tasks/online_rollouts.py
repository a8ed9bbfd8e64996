"""What an online iteration plays: which tasks, in which order, and for how long DAPO searches for groups that say something.

Every draw depends on seed, round, iteration and what was played before it in this iteration, and everything played is a part in the
stage's scratch folder: after a kill the same episodes are found again or played, and none twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, takewhile
from typing import NamedTuple

import pyarrow as pa

from ratchet.envs.base import Task
from ratchet.envs.benchmarks import benchmark
from ratchet.envs.pool import EnvPool
from ratchet.errors import RatchetError
from ratchet.policies.base import Policy
from ratchet.policies.do_nothing import do_nothing
from ratchet.rollout.play import Job
from tasks.common import Stage
from tasks.rollouts import keyed_choice, play_shards


class Draw(NamedTuple):
    """A task to be played as one group; `again` counts how often the iteration has drawn all tasks before."""

    task: Task
    again: int


@dataclass
class Played:
    """All that an iteration played. `groups`: those to learn from; None = all."""

    episodes: pa.Table
    steps: pa.Table
    groups: set[str] | None = None
    batches: int = 1
    resampled_groups: int = 0  # drawn beyond the first batch
    silent_groups: int = 0  # left out because their outcomes are all the same
    spare_groups: int = 0  # left out because there were enough
    null_tasks: int = 0  # left out because doing nothing solves them


def part_name(iteration: int, batch: int = 1) -> str:
    """Of the parts of an iteration's batch of rollouts."""
    return f"iteration {iteration:03d}" + ("" if batch == 1 else f" batch {batch:02d}")


class Rollouts:
    """Plays the iterations of one round."""

    def __init__(self, stage: Stage, tasks: Sequence[Task]) -> None:
        assert stage.key is not None
        self.stage, self.tasks, self.round, self.own = stage, tasks, int(stage.key), stage.settings.evolve_online

    def play(self, iteration: int, policy: Policy, pool: EnvPool) -> Played:
        """One iteration. Raises RatchetError where too few tasks are left, or too few groups say something."""
        own, null_tasks = self.own, list[Task]()
        draws = self._draws(iteration, pool, null_tasks)
        first = list(takewhile(lambda one: one.again == 0, islice(draws, own.tasks)))
        if len(first) < own.tasks:
            raise RatchetError(
                f"{self.stage.title}: doing nothing solves {len(null_tasks)} of {len(self.tasks)} training tasks, and without them less than "
                f"evolve_online.tasks={own.tasks} are left; lower it, raise prepare.games.train, or set evolve_online.null_policy to keep"
            )
        played = Played(*self._batch(iteration, 1, first, policy, pool))
        if own.credit == "dapo":
            self._search(iteration, played, first, draws, policy, pool)
        played.null_tasks = len(null_tasks)
        return played

    def _search(self, iteration: int, played: Played, first: list[Draw], draws: Iterator[Draw], policy: Policy, pool: EnvPool) -> None:
        """DAPO's dynamic sampling: more batches until there are `tasks` groups with spread, which are then the ones to learn from.

        A batch is as large as the groups found so far promise to need, at most the first one's size [ours: the paper always draws whole
        batches]; the limit is the paper's number of batches. Raises RatchetError above it.
        """
        from ratchet.learners.online import speaking_groups

        own = self.own
        names = [self._group(iteration, one) for one in first]
        while True:
            speaking = speaking_groups(played.episodes, reward=own.reward)
            found = [name for name in names if name in speaking]
            if len(found) >= own.tasks:
                break
            if played.batches == own.dapo.batches:
                raise RatchetError(
                    f"round {self.round}, iteration {iteration}: after evolve_online.dapo.batches={played.batches} batches ({len(names)} groups of "
                    f"{own.samples} episodes) only {len(found)} of the {own.tasks} groups wanted have episodes that differ in outcome; raise "
                    "evolve_online.samples or its temperature, take reward=score or another credit, or start from a better or worse actor"
                )
            wanted = own.tasks if not found else min(own.tasks, -(-(own.tasks - len(found)) * len(names) // len(found)))
            more = list(islice(draws, wanted))
            played.batches += 1
            played.resampled_groups += len(more)
            names += [self._group(iteration, one) for one in more]
            episodes, steps = self._batch(iteration, played.batches, more, policy, pool)
            played.episodes, played.steps = pa.concat_tables([played.episodes, episodes]), pa.concat_tables([played.steps, steps])
        played.groups = set(found[: own.tasks])
        played.silent_groups, played.spare_groups = len(names) - len(found), len(found) - own.tasks

    def _batch(self, iteration: int, batch: int, draws: Sequence[Draw], policy: Policy, pool: EnvPool) -> tuple[pa.Table, pa.Table]:
        own, seed = self.own, self.stage.settings.seed
        jobs = [
            Job(one.task, seed, one.again * own.samples + sample, self.round, iteration, self._group(iteration, one))
            for one in draws
            for sample in range(own.samples)
        ]
        return play_shards(self.stage, part_name(iteration, batch), jobs, policy, pool, shard=own.shard)

    def _group(self, iteration: int, one: Draw) -> str:
        return f"{self.round}/{iteration}/{one.task.task_id}" + (f"/{one.again}" if one.again else "")

    def _draws(self, iteration: int, pool: EnvPool, null_tasks: list[Task]) -> Iterator[Draw]:
        """All tasks in the iteration's own order, then all of them again with new samples, and so on, as long as any is worth playing.

        Those that doing nothing solves are left out where the settings say so, and added to `null_tasks`.
        """
        order = keyed_choice(self.tasks, len(self.tasks), self.stage.settings.seed, 3, self.round, iteration)
        worth: list[Task] = []
        for start in range(0, len(order), self.own.tasks):
            chunk = order[start : start + self.own.tasks]
            solved = self._solved_by_nothing(f"null {iteration:03d} batch {start // self.own.tasks + 1:02d}", iteration, chunk, pool)
            null_tasks += [task for task in chunk if task.task_id in solved]
            kept = [task for task in chunk if task.task_id not in solved]
            worth += kept
            yield from (Draw(task, 0) for task in kept)
        for again in count(1) if worth else ():
            yield from (Draw(task, again) for task in worth)

    def _solved_by_nothing(self, name: str, iteration: int, tasks: Sequence[Task], pool: EnvPool) -> set[str]:
        settings = self.stage.settings
        if self.own.null_policy == "keep":
            return set()
        action = getattr(benchmark(settings.env.name), "null_action", None)
        assert action is not None, "refused when the settings were read"
        jobs = [Job(task, settings.seed, 0, self.round, iteration) for task in tasks]
        policy = do_nothing(action, settings.env.action_format)
        episodes, _ = play_shards(self.stage, name, jobs, policy, pool, shard=self.own.shard)
        return {row["task_id"] for row in episodes.select(["task_id", "solved"]).to_pylist() if row["solved"]}
