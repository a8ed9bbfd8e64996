"""The measuring process of benchmarks/meter.py: `python -m benchmarks.meter_run JSON` prints the result on a line of its own."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.spec import MARK, Iteration, result_of

FORWARD, WRITTEN, HEAD, SEPARATE = "forward", "written", "head", "a sequence a question"
FREE_SHARE, SAMPLES, BUDGET = 0.05, 8, 4096


@dataclass(frozen=True)
class Work:
    """What one process measures on `episodes` of `turns` turns of `read` and `write` tokens."""

    folder: str  # of `make_world`
    what: str  # ways, answers, iterations
    episodes: int
    turns: int
    read: int
    write: int
    rounds: int = 1
    ways: tuple[str, ...] = ()
    fitted: int = 0  # optimiser steps that teach the meter the form of its answers first


def in_process(work: Work) -> Any:
    """Measures in a new process. Raises RatchetError with the end of what it said where it fails."""
    command = [sys.executable, "-m", "benchmarks.meter_run", json.dumps(asdict(work))]
    return result_of(command, {"HF_HUB_OFFLINE": "1"}, f"the process that measures {work.what}")


def readings_of(work: Work, vocab: int, behind: int, seed: int) -> list[Any]:
    """Episodes of random tokens, a question before each action."""
    import numpy as np

    from ratchet.meter.read import Reading

    rng = np.random.default_rng(seed)
    size = work.turns * (work.read + work.write)
    points = np.arange(work.turns) * (work.read + work.write) + work.read - 1 - behind
    n = np.full(work.turns, work.write)
    return [Reading(f"{seed}-{number:05d}", rng.integers(5, vocab, size), points, n, n) for number in range(work.episodes)]


class Bench:
    """A meter on the world's model that has learned the form of its answers, and one with a head beside it."""

    def __init__(self, work: Work) -> None:
        from ratchet.meter.base import make_base
        from ratchet.meter.head import Head, width_of
        from ratchet.meter.meter import Meter
        from ratchet.models.build import lay_weights, write_weights

        self.work = work
        folder = Path(work.folder)
        model, template, grammar, alike = make_base(folder / "model", folder / f"words-{work.what}", "plain", 1)
        self.vocab = int(model.config.vocab_size)
        kept = folder / f"fitted-{work.fitted}.safetensors"  # once for all processes
        if kept.is_file():
            lay_weights(kept, model)
        else:
            model = self._fitted(model, grammar)
            write_weights(model, kept)
        model.eval()
        self.meter = Meter(model, template, grammar, "written", "ttg", alike=frozenset([template.tokenizer_id, *alike]), limit=1000.0)
        self.headed = Meter(model, template, grammar, "head", "ttg", Head(width_of(model)), alike=self.meter.alike, limit=1000.0)

    def _fitted(self, model: Any, grammar: Any) -> Any:
        """Half of the episodes are successes, so verdicts differ and numbers have the usual digits."""
        from ratchet.meter.fit import Example, Sft, sft_with_learner

        few = Work(**{**asdict(self.work), "episodes": 4 * self.work.fitted})
        readings = readings_of(few, self.vocab, grammar.behind, 10_000)
        examples = [
            Example(one.ids[: point + 1], int(one.tokens[t:].sum()) if number % 2 else None, number, int(point))
            for number, one in enumerate(readings)
            for t, point in enumerate(one.points)
        ]
        own = Sft(epochs=1, lr=2e-3, batch=4 * self.work.turns, seed=1)
        return sft_with_learner(model, grammar, readings, examples, own, batch_tokens=BUDGET)[0]

    def run(self, way: str, readings: list[Any]) -> dict[str, Any]:
        """Seconds of one way over all prefixes of some episodes."""
        import numpy as np
        import torch

        from ratchet.meter.passes import Trunk
        from ratchet.models.attention import Packed
        from ratchet.models.fused import hidden_of

        trunks = [one.trunk for one in readings]
        began = time.perf_counter()
        if way == FORWARD:
            each = max(1, BUDGET // len(readings[0].ids))
            with torch.inference_mode():
                for start in range(0, len(readings), each):
                    some = readings[start : start + each]
                    sizes = [len(one.ids) for one in some]
                    ids, places = np.concatenate([one.ids for one in some]), np.concatenate([np.arange(size) for size in sizes])
                    hidden_of(self.meter.model, torch.from_numpy(ids), torch.from_numpy(places), Packed.of(sizes))
            return {"seconds": time.perf_counter() - began}
        if way == SEPARATE:
            trunks = [Trunk(one.ids[: ask.at + 1], (ask,)) for one in trunks for ask in one.asks]
        meter = self.headed if way == HEAD else self.meter
        count = sum(len(one.asks) for one in trunks)
        free = np.random.default_rng(0).random(count) < FREE_SHARE if way == WRITTEN else None
        found = meter.answers(trunks, free=free)
        seconds = time.perf_counter() - began
        told = {"questions": count, "completable": float(found.completable.mean()), "unparsable": int((~found.parsed).sum())}
        return {"seconds": seconds, "free": 0 if free is None else int(free.sum()), **told}


def ways(work: Work) -> dict[str, list[dict[str, Any]]]:
    """Every way once a round, in changing order, behind one of a few episodes that warms up."""
    bench = Bench(work)
    few = readings_of(Work(**{**asdict(work), "episodes": 4}), bench.vocab, bench.meter.grammar.behind, 0)
    for way in work.ways:
        bench.run(way, few)
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in work.ways}
    for number in range(work.rounds):
        readings = readings_of(work, bench.vocab, bench.meter.grammar.behind, number + 1)
        for way in work.ways if number % 2 == 0 else work.ways[::-1]:
            found[way].append(bench.run(way, readings))
    return found


def answers(work: Work) -> dict[str, Any]:
    """Answers over branches against those of one question a sequence: how many differ in verdict or number."""
    import numpy as np

    from ratchet.meter.passes import Trunk

    bench = Bench(work)
    readings = readings_of(work, bench.vocab, bench.meter.grammar.behind, 1)
    trunks = [one.trunk for one in readings]
    found = bench.meter.answers(trunks, all_remaining=True)
    alone = bench.meter.answers([Trunk(one.ids[: ask.at + 1], (ask,)) for one in trunks for ask in one.asks], all_remaining=True)
    differ = (found.completable != alone.completable) | (found.remaining != alone.remaining)
    return {
        "questions": len(differ),
        "differ": int(differ.sum()),
        "furthest_logit": float(np.abs(found.logit - alone.logit).max()),
        "numbers": len(np.unique(found.remaining)),
        "completable": float(found.completable.mean()),
    }


def iterations(work: Work) -> dict[str, Any]:
    """Whole iterations in the world of benchmarks/peers with a meter's credit; what of them the meter takes."""
    import numpy as np

    from benchmarks.peers.ours import FACTORY, STEP_LIMIT_S, rollout
    from benchmarks.peers.world import next_tasks, tasks_of
    from ratchet.credit.meter import costs, deltas, meter_credit
    from ratchet.envs.pool import EnvPool
    from ratchet.episodes.template import load_template
    from ratchet.learners.actor import ActorLearner
    from ratchet.learners.online import credited, learn
    from ratchet.losses.clipped_surrogate import ClippedSurrogate
    from ratchet.models.build import load_model

    bench, folder = Bench(work), Path(work.folder)
    template, actor, tasks = load_template(folder / "tokenizer"), load_model(folder / "model"), tasks_of(folder)
    learner = ActorLearner(actor, [ClippedSurrogate(low=0.2, high=0.28)], optimizer="adamw", batch_tokens=BUDGET, max_grad_norm=1.0)
    found: list[dict[str, float]] = []
    with EnvPool(FACTORY, {"folder": work.folder, "tokens": work.read}, 1, STEP_LIMIT_S) as pool:
        for number in range(work.rounds + 1):
            samples = min(SAMPLES, work.episodes)
            spec = Iteration(work.folder, work.turns if number else 2, -(-work.episodes // samples), samples, work.read, work.write)
            began = time.perf_counter()
            episodes, steps, _ = rollout(actor, template, pool, next_tasks(tasks, spec.tasks, number), spec, number)
            batch = credited(episodes, steps, credit="grpo", reward="score")
            asked = time.perf_counter()
            by_id = {row["episode_id"]: row for row in episodes.to_pylist()}
            rows = [by_id[one.episode_id] for one in batch.sequences]
            readings = bench.meter.read(rows, steps)
            estimates, _ = bench.meter.estimate(rows, readings, free_share=FREE_SHARE)
            for one, row, estimate, reading in zip(batch.sequences, rows, estimates, readings, strict=True):
                c, share = costs(estimate, bench.meter.limit, solved=bool(row["solved"]), truncated=bool(row["truncated"]))
                one.advantages = np.float32(one.advantages * meter_credit(deltas(c, share, estimate.tokens, "paper"), reading.generated, float(one.advantages[0]))[1])
            scored = time.perf_counter()
            learn(learner, batch, steps=1, lr=1e-5, reference=None)
            if number:
                found.append({"seconds": time.perf_counter() - began, "meter": scored - asked})
    return {"iterations": found}


def main(given: str) -> None:
    values = json.loads(given)
    work = Work(**{**values, "ways": tuple(values["ways"])})
    print(MARK + json.dumps({"ways": ways, "answers": answers, "iterations": iterations}[work.what](work)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
