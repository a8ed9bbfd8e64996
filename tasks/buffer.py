"""The round's buffer: experts and the actor's own episodes, fixed from here on, with what the actor at the round's start thought of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.episodes.files import read_table, write_table
from ratchet.episodes.labels import PENALTIES, label
from ratchet.errors import RatchetError
from ratchet.files import sha256_files, write_json
from ratchet.settings_critic import uses_buffer
from tasks.common import Stage, main, say, skipped

if TYPE_CHECKING:
    from ratchet.learners.batches import Sequence

FILES = ("episodes", "steps", "labels", "buffer", "logprobs")


def run(stage: Stage) -> None:
    """Writes data/rounds/K/buffer."""
    if not uses_buffer(stage.settings):
        return stage.skip("fit_critic and evolve_offline are off")
    from tasks.rounds import hold_up

    if reason := hold_up(stage):
        return stage.skip(reason)
    _Buffer(stage).run()


class _Buffer:
    def __init__(self, stage: Stage) -> None:
        from ratchet.episodes.template import load_template

        assert stage.key is not None
        if stage.settings.buffer.own.tasks:
            stage.call_players()
        self.stage, self.settings, self.round = stage, stage.settings, int(stage.key)
        self.prev = self.settings.rounds[stage.key].prev
        self.start = stage.path(f"models/rounds/{self.prev}/start")
        self.template = load_template(self.start, self.settings.env.action_format)

    def run(self) -> None:
        from ratchet.critic.buffer import assemble, in_tokens, one_sided
        from ratchet.envs.benchmarks import benchmark
        from ratchet.learners.batches import sequences_of
        from ratchet.models.build import card_of

        stage, own = self.stage, self.settings.buffer
        parts = [in_tokens(part, self.template) for part in self._parts() if part.episodes.num_rows]
        limits = {"held_out_share": own.held_out_share, "max_tokens": self.settings.env.max_tokens}
        episodes, steps, rows = assemble(parts, round=self.round, seed=self.settings.seed, **limits)
        penalties = getattr(benchmark(self.settings.env.name), "penalties", PENALTIES)
        if penalties is None:
            say(f"{stage.title}: {self.settings.env.name} says nothing about an action that rules could read: no retrospective rewards")
        labels = label(episodes, steps, penalties)
        sequences = sequences_of(steps)
        found = self._start_logprobs(sequences)
        agreement = self._agreement(sequences, found, episodes, rows)
        tables = {"episodes": episodes, "steps": steps, "buffer": rows, "labels": labels, "logprobs": _by_step(steps, sequences, found)}
        for name in FILES:
            write_table(stage.out(f"data/rounds/{self.round}/buffer/{name}.parquet"), name, tables[name])
        out = stage.out(f"data/rounds/{self.round}/buffer")
        told = self._told(episodes, rows) | {"one_sided": one_sided(episodes), "start": card_of(self.start)["version"]}
        told["hash"] = sha256_files([out / f"{name}.parquet" for name in FILES])
        write_json(out / "buffer.json", told)
        stage.metrics(told | agreement)
        say(f"{stage.title}: {told['episodes']} episodes ({', '.join(f'{n} {s}' for s, n in told['by_source'].items())}), {100 * (told['success'] or 0):.1f} % solved")
        stage.finish()

    def _parts(self) -> list[Any]:
        """Of each source; an episode belongs to the first that has it."""
        from ratchet.critic.buffer import EXPERT, FAILURE, OWN, POOL, Part, strongest
        from tasks.rollouts import keyed_choice

        stage, own = self.stage, self.settings.buffer
        harvest = Part(OWN, *self._read(f"data/rounds/{self.round}/harvest"))
        policy = np.array(harvest.episodes["policy_id"].to_pylist(), str)
        experts = self._experts()
        seeds = None
        if not experts.episodes.num_rows and own.experts:
            seeds = strongest(harvest, ())
            if seeds is not None:
                solved = np.array(harvest.episodes["solved"].to_pylist(), bool)
                experts = Part(EXPERT, *_tables(harvest.where((policy == seeds) & solved)))
                say(f"{stage.title}: no demonstration solved its task; the successes of {seeds}, the strongest of the harvest, take their place")
        parts = [experts, harvest.where(policy == self.settings.actor), *self._played()]
        if own.pool:
            others = harvest.where((policy != self.settings.actor) & (policy != (seeds or "")))
            parts.append(Part(POOL, others.episodes, others.steps))
        if own.online_failures and skipped(stage.path(f"data/rounds/{self.prev}/online")) is None:
            online = Part(FAILURE, *self._read(f"data/rounds/{self.prev}/online"))
            failed = np.flatnonzero(~np.array(online.episodes["solved"].to_pylist(), bool))
            most = len(failed) if own.online_failures is True else own.online_failures
            parts.append(online.where(np.isin(np.arange(online.episodes.num_rows), keyed_choice(failed, most, self.settings.seed, 7, self.round))))
        return [*parts, *self._older()]

    def _tasks(self) -> list[Any]:
        """What the actor plays for the buffer."""
        from ratchet.evaluation.panels import read_panel
        from tasks.rollouts import keyed_choice

        own = self.settings
        return keyed_choice(read_panel(self.stage.path("data/panels/train.json")).tasks, own.buffer.own.tasks, own.seed, 5, self.round)

    def _experts(self) -> Any:
        """Solved demonstrations: of the tasks that the actor plays first, since they show what could have been done there."""
        from ratchet.critic.buffer import EXPERT, Part
        from tasks.rollouts import keyed_choice

        own = self.settings
        found = Part(EXPERT, *self._read("data/demonstrations"))
        solved = np.flatnonzero(np.array(found.episodes["solved"].to_pylist(), bool))
        tasks, played = found.episodes["task_id"].to_pylist(), {task.task_id for task in self._tasks()}
        order = keyed_choice(solved, len(solved), own.seed, 6, self.round)
        chosen = sorted(order, key=lambda row: tasks[row] not in played)[: own.buffer.experts]
        mask = np.zeros(found.episodes.num_rows, bool)
        mask[chosen] = True
        return found.where(mask)

    def _played(self) -> list[Any]:
        """Greedy and sampled episodes of the actor as it is."""
        from ratchet.critic.buffer import OWN, Part
        from ratchet.envs.benchmarks import open_pool
        from ratchet.rollout.play import Job
        from tasks.rollouts import model_policy, play_shards

        stage, settings, own = self.stage, self.settings, self.settings.buffer.own
        tasks, out = self._tasks(), []
        with open_pool(stage.path("data/games"), settings.env, ["train"], admissible=False) as pool:
            for name, temperature, samples in (("greedy", 0.0, range(own.greedy)), ("sampled", own.temperature, range(own.greedy, own.samples))):
                # the harvest's own episode of a task is its sample 0
                jobs = [Job(task, settings.seed, 1 + sample, self.round, 0, f"{self.round}/buffer/{task.task_id}") for task in tasks for sample in samples]
                if jobs:
                    policy = model_policy(self.start, settings, policy_id=settings.actor, rows=own.shard, temperature=temperature)
                    out.append(Part(OWN, *play_shards(stage, name, jobs, policy, pool, shard=own.shard)))
        return out

    def _older(self) -> list[Any]:
        """What the buffer before held of the actor's own, as long as it is not too old."""
        from ratchet.critic.buffer import EXPERT, SOURCES, Part

        folder = self.stage.path(f"data/rounds/{self.prev}/buffer")
        if not self.settings.buffer.max_age or skipped(folder):
            return []
        rows = {row["episode_id"]: row for row in read_table(folder / "buffer.parquet", "buffer").to_pylist()}
        tables = self._read(f"data/rounds/{self.prev}/buffer")
        out = []
        for source in SOURCES:
            part = Part(source, *tables)
            names = part.episodes.select(["episode_id", "round"]).to_pylist()
            young = [
                rows[one["episode_id"]]["source"] == source != EXPERT and self.round - one["round"] <= self.settings.buffer.max_age for one in names
            ]
            out.append(part.where(young))
        return out

    def _read(self, folder: str) -> tuple[pa.Table, pa.Table]:
        path = self.stage.path(folder)
        return read_table(path / "episodes.parquet", "episodes"), read_table(path / "steps.parquet", "steps")

    def _start_logprobs(self, sequences: list[Sequence]) -> dict[str, np.ndarray]:
        """Of every token under the actor at the round's start, at temperature 1, by episode."""
        from ratchet.models.build import load_model
        from tasks.evolve_offline import learner_of

        return learner_of(self.stage, load_model(self.start, light=True), []).logprobs(sequences)

    def _agreement(self, sequences: list[Sequence], found: dict[str, np.ndarray], episodes: pa.Table, rows: pa.Table) -> dict[str, float]:
        """How far they are from what this actor itself recorded when it played. Raises RatchetError where the two do not compute the same."""
        from ratchet.critic.buffer import by_the_start
        from ratchet.learners.safety import Agreement, check_agreement

        played = episodes.filter(pc.is_in(episodes["temperature"], value_set=pa.array([0.0, 1.0], pa.float32())))  # greedy tells those of 1
        own = by_the_start(rows.to_pylist()) & set(played["episode_id"].to_pylist())
        agreement = Agreement()
        agreement.compare([one for one in sequences if one.episode_id in own], found)
        told = agreement.metrics()
        try:
            check_agreement(told["logprob_max_diff"], self.settings.evolve_online.logprob_limit)
        except RatchetError as error:
            raise RatchetError(f"{self.stage.title}: {error}") from None
        return told

    def _told(self, episodes: pa.Table, rows: pa.Table) -> dict[str, Any]:
        solved = dict(zip(episodes["episode_id"].to_pylist(), episodes["solved"].to_pylist(), strict=True))
        sources = Counter(rows["source"].to_pylist())
        wins = Counter(row["source"] for row in rows.select(["episode_id", "source"]).to_pylist() if solved[row["episode_id"]])
        return {
            "round": self.round,
            "episodes": episodes.num_rows,
            "steps": int(pc.sum(episodes["n_steps"]).as_py() or 0),
            "success": float(np.mean(list(solved.values()))) if solved else None,
            "by_source": dict(sorted(sources.items())),
            "solved_by_source": dict(sorted(wins.items())),
            "by_age": {str(age): count for age, count in sorted(Counter(rows["age"].to_pylist()).items())},
            "held_out": int(pc.sum(rows["held_out"]).as_py() or 0),
        }


def _by_step(steps: pa.Table, sequences: list[Sequence], found: dict[str, np.ndarray]) -> pa.Table:
    """What is found of the replies' tokens, a row a step."""
    from ratchet.learners.batches import REPLY

    values = [found[one.episode_id][(one.step == t) & (one.role == REPLY)] for one in sequences for t in range(len(one.advantages))]
    return pa.table({"episode_id": steps["episode_id"], "t": steps["t"], "logprobs": pa.array(values, pa.list_(pa.float32()))})


def _tables(part: Any) -> tuple[pa.Table, pa.Table]:
    return part.episodes, part.steps


if __name__ == "__main__":
    main("buffer", run, "round")
