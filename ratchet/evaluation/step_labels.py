"""Exact labels of steps, where an environment can give them: 1 nearer to success, 0 no change, −1 further away.

The proving ground has exact values (`exact`), the compiled ALFWorld a shortest remaining plan (`plan`), and a benchmark with a graded score
what each step added to it (`score`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.envs.base import Task
from ratchet.episodes.replay import TASK_FIELDS
from ratchet.episodes.schema import rows_of

Labels = list[np.ndarray | None]


def step_labels(settings: Any, games: Path, rows: Sequence[dict[str, Any]], steps: pa.Table, split: str = "train") -> tuple[str | None, Labels]:
    """(where they come from, labels int8 [T] of each episode, None where it has none). `settings` is the `env` section; nothing is played
    in another process."""
    spans = rows_of(steps["episode_id"].to_pylist())
    actions = steps["action"].to_pylist()
    own = [[action or "" for action in actions[spans[row["episode_id"]].start : spans[row["episode_id"]].stop]] for row in rows]
    if settings.name == "proving-ground":
        return "exact", [_of_world(settings.options, row, some) for row, some in zip(rows, own, strict=True)]
    if settings.name == "alfworld" and getattr(settings.options, "games", "") == "generated":
        return "plan", _of_plans(settings, games, split, rows, own)
    scores = np.maximum(np.nan_to_num(steps["score"].to_numpy(zero_copy_only=False).astype(np.float64)), 0)
    found: Labels = [_of_scores(scores[spans[row["episode_id"]].start : spans[row["episode_id"]].stop]) for row in rows]
    graded = any(one is not None and np.any(one[:-1] != 0) for one in found)
    return ("score", found) if graded else (None, [None] * len(rows))


def _of_scores(scores: np.ndarray) -> np.ndarray:
    return np.sign(np.diff(scores, prepend=0.0)).astype(np.int8)


def _of_world(options: Any, row: Mapping[str, Any], actions: Sequence[str]) -> np.ndarray:
    from ratchet.envs.proving_ground.exact import solve
    from ratchet.envs.proving_ground.generate import world_of

    world = world_of(row["task_id"], options.rooms, options.items, options.noise)
    solution, state, signs = solve(world), world.begin, []
    for action in actions:
        signs.append(solution.quality(state, action).sign)
        state = world.act(state, action)[0]
    return np.array(signs, np.int8)


def _of_plans(settings: Any, games: Path, split: str, rows: Sequence[dict[str, Any]], actions: Sequence[Sequence[str]]) -> Labels:
    from ratchet.envs.alfworld.benchmark import make
    from ratchet.envs.alfworld.compiled import CompiledGame
    from ratchet.envs.benchmarks import benchmark
    from ratchet.evaluation.alfworld_plan import plan_length

    env = make(**benchmark(settings.name).arguments(games, settings, [split]))
    found: Labels = []
    for row, some in zip(rows, actions, strict=True):
        env.reset(Task(*(row[name] for name in TASK_FIELDS)))
        game = env._game
        if not isinstance(game, CompiledGame) or (length := plan_length(game)) is None:
            found.append(None)
            continue
        signs = []
        for action in some:
            game.step(action)
            after = plan_length(game)
            signs.append(np.sign(length - (length if after is None else after)))
            length = length if after is None else after
        found.append(np.array(signs, np.int8))
    return found
