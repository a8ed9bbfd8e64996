"""Episodes of an expert that sees only what an agent sees, for the warm start. Texts only: each model reads them in its own tokens."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ratchet.envs.benchmarks import open_pool
from ratchet.episodes.files import write_table
from ratchet.errors import RatchetError
from ratchet.evaluation.panels import read_panel
from ratchet.rollout.play import Job
from tasks.common import Stage, main, say
from tasks.imported import imported
from tasks.rollouts import expert_policy, keyed_choice, play_shards, random_policy

SHARD = 1024


def run(stage: Stage) -> None:
    """Writes data/demonstrations."""
    settings = stage.settings
    tasks = keyed_choice(read_panel(stage.path("data/panels/train.json")).tasks, settings.demonstrate.episodes, settings.seed, 1)
    games, chosen = stage.path("data/games"), settings.demonstrate
    policy = expert_policy(settings, games, chosen.slip_rate) if chosen.policy == "expert" else random_policy(settings)
    with open_pool(games, settings.env, ["train"], admissible=policy.needs_admissible) as pool:
        episodes, steps = play_shards(stage, policy.policy_id, [Job(task, settings.seed) for task in tasks], policy, pool, shard=SHARD, rows=256)
    if chosen.imported is not None:
        given, given_steps, left_out = imported(stage.root, chosen.imported, settings.env.action_format, stage.path("data/panels"))
        say(f"demonstrate: {given.num_rows} imported episodes{f', {left_out} left out: their tasks are in a panel' if left_out else ''}")
        episodes, steps = pa.concat_tables([episodes, given]), pa.concat_tables([steps, given_steps])
    solved = np.asarray(episodes["solved"].to_pylist(), bool)
    if not solved.any():
        raise RatchetError("demonstrate: none of the demonstrations solved its task; nothing can be imitated; choose policy: expert")
    write_table(stage.out("data/demonstrations/episodes.parquet"), "episodes", episodes)
    write_table(stage.out("data/demonstrations/steps.parquet"), "steps", steps)
    counts = {"episodes": episodes.num_rows, "errors": episodes.num_rows - episodes["error"].null_count, "steps": steps.num_rows}
    stage.metrics({**counts, "success": float(solved.mean()), "mean_steps": float(np.mean(episodes["n_steps"].to_pylist()))})
    stage.finish()


if __name__ == "__main__":
    main("demonstrate", run)
