"""What measures speed still runs: the smallest work of each measuring process, in this one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks import critic_run, forecast_run, meter_run
from benchmarks.peers.make import TINY, make_world

BATCH = (2, 3, 12, 6)  # episodes, turns, tokens read and written a turn


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("speed")
    make_world(folder, tasks=2, shape=TINY, context=256)
    return folder


def test_a_critic_is_fitted_both_ways_and_an_actor_updated_both_ways() -> None:
    read = critic_run.reading(critic_run.Work("reading", asdict(TINY), *BATCH, 1))
    tokens = {way: found[0]["tokens"] for way, found in read.items()}
    assert tokens[critic_run.STEP] > tokens[critic_run.EPISODE] > 0
    updated = critic_run.updates(critic_run.Work("updates", asdict(TINY), *BATCH, 1))
    assert updated[critic_run.OFFLINE][0]["tokens"] == updated[critic_run.ONLINE][0]["tokens"] > 0


def test_forecasts_cost_tokens_and_their_gradients_are_those_of_a_pass_a_prefix(world: Path) -> None:
    ways = (forecast_run.GRPO, forecast_run.SAMPLED, forecast_run.ALL, forecast_run.PER_STEP)
    found = forecast_run.updates(forecast_run.Work(str(world), "updates", *BATCH, 1, ways))
    grpo, sampled, every, apart = (found[way][0]["tokens"] for way in ways)
    assert grpo < sampled < every < apart
    assert forecast_run.gradients(forecast_run.Work(str(world), "gradients", *BATCH))["furthest"] < 1e-5


def test_a_meter_is_asked_in_every_way(world: Path) -> None:
    ways = (meter_run.FORWARD, meter_run.WRITTEN, meter_run.HEAD, meter_run.SEPARATE)
    found = meter_run.ways(meter_run.Work(str(world), "ways", *BATCH, rounds=1, ways=ways, fitted=1))
    assert all(found[way][0]["seconds"] > 0 for way in ways)
