"""The measuring process of benchmarks/forecast.py: `python -m benchmarks.forecast_run JSON` prints the result on a line of its own."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.peers.spec import MARK, Iteration, on_top_mb, peak_mb, resident_mb, result_of

GRPO, SAMPLED, ALL, PER_STEP = "grpo", "two prefixes", "every prefix", "a pass a prefix"
PREFIXES: dict[str, Any] = {SAMPLED: 2, ALL: "all", PER_STEP: "all"}
BUDGET, SAMPLES, HORIZON, WEIGHT = 4096, 8, 2, 0.01
PART = 16  # episodes that a way updates on before it is another's turn: a machine is faster now and slower then, for seconds or minutes


@dataclass(frozen=True)
class Work:
    """What one process measures: `ways` that take turns, on `episodes` of `turns` turns of `read` and `write` tokens."""

    folder: str  # of `make_world`
    what: str  # updates, iterations, memory, gradients
    episodes: int
    turns: int
    read: int
    write: int
    rounds: int = 1
    ways: tuple[str, ...] = ()


def in_process(work: Work) -> Any:
    """Measures in a new process. Raises RatchetError with the end of what it said where it fails."""
    command = [sys.executable, "-m", "benchmarks.forecast_run", json.dumps(asdict(work))]
    return result_of(command, {"HF_HUB_OFFLINE": "1"}, f"the process that measures {work.what}")


def batch_of(work: Work, vocab: int, seed: int) -> tuple[list[Any], list[str], Any]:
    """(sequences, the group of each, their steps): random tokens, groups of SAMPLES, each with advantages of its own; all succeed, so
    that every episode is asked for forecasts."""
    import numpy as np

    from ratchet.episodes.files import table_of
    from ratchet.learners.batches import sequences_of

    rng = np.random.default_rng(seed)
    rows = []
    for number in range(work.episodes):
        for t in range(work.turns):
            read, wrote = (rng.integers(5, vocab, size).tolist() for size in (work.read, work.write))
            rows.append(
                {"episode_id": f"{seed}-{number:05d}", "t": t, "prompt_ids": read, "reply_ids": wrote, "valid": True, "action_type": "go",
                 "logprobs": [float(-np.log(vocab))] * work.write}
            )  # fmt: skip
    steps = table_of("steps", rows)
    sequences = sequences_of(steps)
    for one in sequences:
        one.advantages, one.solved = np.full(work.turns, rng.normal(), np.float32), True
    return sequences, [f"{number // SAMPLES}" for number in range(work.episodes)], steps


def forecaster_of(work: Work, template: Any, way: str, seed: int) -> Any:
    """Targets as in training, but that the action is a fixed part of a reply: random tokens are in no format. All but the mark before it
    and the end-of-turn, which is more than ALFWorld's actions have."""
    from ratchet.learners.forecast import Forecaster

    class AnyTokens(Forecaster):
        def _action(self, ids: tuple[int, ...]) -> tuple[int, ...] | None:
            return ids[1:-1] or None

    return AnyTokens(template, horizon=HORIZON, gate="all", samples=SAMPLES, seed=seed, context=10**6, prefixes=PREFIXES[way])


class Ways:
    """One model and a learner for each way; what they share are the weights."""

    def __init__(self, work: Work) -> None:
        from ratchet.episodes.template import load_template
        from ratchet.models.build import load_model

        self.work, folder = work, Path(work.folder)
        self.template, self.model = load_template(folder / "tokenizer"), load_model(folder / "model")
        self.learners = {way: self._learner(way) for way in work.ways}
        self.seeds = count(1)

    def _learner(self, way: str) -> Any:
        from ratchet.learners.actor import ActorLearner
        from ratchet.losses.clipped_surrogate import ClippedSurrogate
        from ratchet.losses.forecast import Forecast

        return ActorLearner(
            self.model,
            [ClippedSurrogate(low=0.2, high=0.28), Forecast(WEIGHT if way in PREFIXES else 0.0)],
            optimizer="adamw",
            batch_tokens=BUDGET,
            max_grad_norm=1.0,
            packing="separate" if way == PER_STEP else "branches",
        )

    def update(self, way: str, sequences: list[Any], groups: list[str], steps: Any) -> dict[str, float]:
        """One update, what lays on the forecasts included: seconds and tokens of its passes."""
        from ratchet.clock import CLOCK

        CLOCK.clear()
        for one in sequences:
            one.branches = ()
        began = time.perf_counter()
        if way in PREFIXES:
            forecaster_of(self.work, self.template, way, next(self.seeds)).attach(sequences, groups, steps)
        self.learners[way].update(sequences, 1e-5)
        return {"seconds": time.perf_counter() - began, "tokens": CLOCK.counts["tokens_learned"]}


def updates(work: Work) -> dict[str, list[dict[str, float]]]:
    """Sums over each round's batch, which the ways take by turns, PART episodes at a time and in changing order; behind an update on a few
    episodes that warms up."""
    ways = Ways(work)
    vocab = ways.model.config.vocab_size
    few = batch_of(replace(work, episodes=4), vocab, 0)
    for way in work.ways:
        ways.update(way, *few)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in work.ways}
    for number in range(work.rounds):
        parts = _parts(work)
        timed = []
        for part, size in enumerate(parts):
            batch = batch_of(replace(work, episodes=size), vocab, 1 + number * len(parts) + part)
            timed.append({way: ways.update(way, *batch) for way in _turns(work, number + part)})
        for way in work.ways:
            found[way].append(_sum([one[way] for one in timed]))
    return found


def _parts(work: Work) -> list[int]:
    """Episodes of each part of a batch."""
    return [min(PART, work.episodes - start) for start in range(0, work.episodes, PART)]


def _turns(work: Work, number: int) -> tuple[str, ...]:
    return work.ways if number % 2 == 0 else work.ways[::-1]


def _sum(parts: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def memory(work: Work) -> dict[str, float]:
    """The peak of one update: of the process, and on top of what was there before it."""
    ways = Ways(work)
    [way] = work.ways
    batch = batch_of(work, ways.model.config.vocab_size, 1)
    before = resident_mb()
    ways.update(way, *batch)
    return {"peak_mb": round(peak_mb(), 1), "mb_on_top": round(on_top_mb(before), 1)}


def gradients(work: Work) -> dict[str, float]:
    """How far the gradients of branches are from those of a pass for each prefix, the worst tensor and the one in the middle."""
    import statistics

    ways = Ways(replace(work, ways=(ALL, PER_STEP)))
    batch = batch_of(work, ways.model.config.vocab_size, 1)
    kept: dict[str, dict[str, Any]] = {}
    for way, learner in ways.learners.items():
        finish = learner._step

        def keep(sums: Any, lr: float, way: str = way, finish: Any = finish) -> Any:
            kept[way] = {name: p.grad.clone() for name, p in ways.model.named_parameters() if p.grad is not None}
            return finish(sums, 0.0)

        learner._step = keep
        ways.update(way, *batch)
    apart = [float((kept[ALL][name] - value).abs().max() / value.abs().max()) for name, value in kept[PER_STEP].items()]
    return {"furthest": max(apart), "median": statistics.median(apart), "tensors": len(apart)}


def iterations(work: Work) -> dict[str, list[dict[str, float]]]:
    """Whole iterations in the world of benchmarks/peers, where each episode has all its turns: rollouts, credit, forecasts, one update.

    No way changes a rollout, so each round's are played once, and their seconds are part of both ways'; the rest is taken by turns, PART
    episodes at a time.
    """
    import pyarrow.compute as pc

    from benchmarks.peers.ours import FACTORY, STEP_LIMIT_S, rollout
    from benchmarks.peers.world import next_tasks, tasks_of
    from ratchet.clock import CLOCK
    from ratchet.envs.pool import EnvPool
    from ratchet.learners.online import credited, learn

    ways, tasks, samples = Ways(work), tasks_of(Path(work.folder)), min(SAMPLES, work.episodes)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in work.ways}

    def played(number: int, turns: int) -> tuple[Any, Any, float]:
        spec = Iteration(work.folder, turns, -(-work.episodes // samples), samples, work.read, work.write)
        began = time.perf_counter()
        episodes, steps, _ = rollout(ways.model, ways.template, pool, next_tasks(tasks, spec.tasks, number), spec, number)
        return episodes, steps, time.perf_counter() - began

    def learned(way: str, episodes: Any, steps: Any, number: int) -> dict[str, float]:
        CLOCK.clear()
        began = time.perf_counter()
        batch = credited(episodes, steps, credit="grpo", reward="score")
        if way in PREFIXES:
            forecaster_of(work, ways.template, way, number).attach(batch.sequences, batch.group_ids, steps)
        learn(ways.learners[way], batch, steps=1, lr=1e-5, reference=None)
        return {"seconds": time.perf_counter() - began, "tokens": CLOCK.counts["tokens_learned"]}

    with EnvPool(FACTORY, {"folder": work.folder, "tokens": work.read}, 1, STEP_LIMIT_S) as pool:
        for number in range(work.rounds + 1):
            episodes, steps, seconds = played(number, work.turns if number else 2)
            groups, timed, size = sorted(set(episodes["group_id"].to_pylist())), [], max(1, PART // samples)
            for part, start in enumerate(range(0, len(groups), size)):
                chosen = groups[start : start + size]
                own = episodes.filter(pc.is_in(episodes["group_id"], value_set=pa.array(chosen)))
                taken = steps.filter(pc.is_in(steps["episode_id"], value_set=own["episode_id"].combine_chunks()))
                timed.append({way: learned(way, own, taken, number) for way in _turns(work, number + part)})
            for way in work.ways if number else ():  # the first one, which is short, warms up
                total = _sum([one[way] for one in timed])
                found[way].append({**total, "seconds": total["seconds"] + seconds})
    return found


def main(given: str) -> None:
    values = json.loads(given)
    work = Work(**{**values, "ways": tuple(values["ways"])})
    measured = {"updates": updates, "iterations": iterations, "memory": memory, "gradients": gradients}[work.what](work)
    print(MARK + json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
