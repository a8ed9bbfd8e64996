"""Labels of the harvest's steps, and their validation: a random share of the episodes is played again and compared."""

from __future__ import annotations

import numpy as np

from ratchet.envs.benchmarks import benchmark, open_pool
from ratchet.episodes.files import read_table, write_table
from ratchet.episodes.labels import NONE, PENALTIES, label
from ratchet.episodes.replay import replay
from ratchet.files import write_json
from tasks.common import Stage, main, say, skipped

NAMES = ("format", "invalid", "repeated")


def run(stage: Stage) -> None:
    """Writes data/rounds/K/labels."""
    settings = stage.settings
    harvest = stage.path(f"data/rounds/{stage.key}/harvest")
    if reason := skipped(harvest):
        return stage.skip(reason)
    episodes, steps = read_table(harvest / "episodes.parquet", "episodes"), read_table(harvest / "steps.parquet", "steps")
    penalties = getattr(benchmark(settings.env.name), "penalties", PENALTIES)
    labels = label(episodes, steps, penalties)
    with open_pool(stage.path("data/games"), settings.env, ["train"], admissible=False) as pool:
        played = replay(episodes, steps, settings.label.replay_share, settings.seed, pool)
    say(f"{stage.title}: {played['replayed']} episodes replayed, {played['mismatched']} differ")
    write_table(stage.out(f"data/rounds/{stage.key}/labels/labels.parquet"), "labels", labels)
    write_json(stage.out(f"data/rounds/{stage.key}/labels/replay.json"), played)
    rewards = labels["r_aux"].to_numpy()
    values = {**dict(zip(NAMES, penalties or NONE, strict=True)), "none": 0.0}
    counts = {name: int(np.isclose(rewards, value).sum()) for name, value in values.items()}
    stage.metrics({"replayed": played["replayed"], "mismatched": played["mismatched"], "r_aux": counts})
    stage.finish()


if __name__ == "__main__":
    main("label", run, "round")
