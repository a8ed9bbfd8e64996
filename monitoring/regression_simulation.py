"""How often the rules of monitoring/regression.py and ratchet/evaluation/promotion.py err, by playing rounds of made-up outcomes.

A round's version differs from the champion on a share of the tasks; on those, scenes favour the one or the other at random, as real
scenes do. `gain` is what the version truly gains on all tasks: 0 is a round without change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitoring.regression import judge
from ratchet.evaluation.compare import compare
from ratchet.evaluation.promotion import decide, level_of, spending

STRATA = ("pick", "clean", "heat", "cool", "look", "two")


@dataclass(frozen=True, slots=True)
class World:
    """The panel and how versions differ on it. The defaults are a panel of `confirm` as the quickstart has it."""

    tasks: int = 512
    scenes: int = 12
    success: float = 0.6
    changed: float = 0.3  # share of tasks that two versions of the same skill do not end alike
    favour: float = 0.15  # standard deviation, over scenes, of the chance with which a changed task is solved
    resamples: int = 1000
    max_stratum_loss: float = 0.15


@dataclass(frozen=True, slots=True)
class Rates:
    """Per run of `rounds` rounds: expected promotions and alarms, and the share of runs with any; `runs` were played."""

    rounds: int
    runs: int
    promotions: float
    alarms: float
    any_promotion: float
    any_alarm: float


def simulate(rounds: int, runs: int, *, alpha: float = 0.05, gain: float = 0.0, world: World = World(), seed: int = 1) -> Rates:
    """Plays `runs` runs of `rounds` rounds with versions that truly gain `gain`. A version that is promoted is no champion here: every
    round asks the same question, which is what the error is about."""
    rng = np.random.default_rng(seed)
    promoted, alarmed = np.zeros((runs, rounds), bool), np.zeros((runs, rounds), bool)
    tail = spending(alpha, rounds, 1)
    for run in range(runs):
        champion = rng.random(world.tasks) < world.success
        for k in range(rounds):
            comparison = compare(
                rows("a", champion, world), rows("b", _version(champion, gain, world, rng), world), level=level_of(tail), resamples=world.resamples, seed=k
            )
            promoted[run, k] = decide(comparison, world.max_stratum_loss).promoted
            alarmed[run, k] = judge(comparison, world.max_stratum_loss)["regression"]
    means = (promoted.sum(1), alarmed.sum(1), promoted.any(1), alarmed.any(1))
    return Rates(rounds, runs, *(float(one.mean()) for one in means))


def _version(champion: NDArray[np.bool_], gain: float, world: World, rng: np.random.Generator) -> NDArray[np.bool_]:
    """The champion's outcomes with a share of the tasks drawn again, by scene, so that on average `gain` more are solved."""
    scenes = np.arange(world.tasks) % world.scenes
    share = max(world.changed, abs(gain) / max(1e-9, min(world.success, 1 - world.success)))
    chance = world.success + rng.normal(0, world.favour, world.scenes)[scenes] + gain / share
    again = rng.random(world.tasks) < share
    return np.where(again, rng.random(world.tasks) < np.clip(chance, 0, 1), champion)


def rows(version: str, solved: NDArray[np.bool_], world: World) -> list[dict[str, Any]]:
    """Outcomes of a version, task i in scene i mod `scenes`."""
    fixed = {"version": version, "panel": "confirm", "panel_hash": "simulated", "sample": 0, "seed": 0, "error": None, "n_steps": 8, "n_tokens": 80}
    return [
        {
            **fixed,
            "task_id": f"task-{i:05d}",
            "stratum": STRATA[i // world.scenes % len(STRATA)],
            "cluster": f"scene-{i % world.scenes}",
            "solved": bool(won),
            "score": float(won),
            "truncated": not won,
            "n_invalid": 0,
            "episode_id": f"{version}-{i}",
        }
        for i, won in enumerate(solved)
    ]
