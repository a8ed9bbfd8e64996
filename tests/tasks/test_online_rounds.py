"""What an online round plays: DAPO's search for groups that differ, tasks that doing nothing solves, and that no kill changes a byte."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ratchet.envs.base import Task
from ratchet.episodes.files import read_table, table_of
from ratchet.errors import RatchetError
from ratchet.rollout.play import Job, episode_id
from tasks import online_rollouts, rollouts
from tasks.online_rollouts import Rollouts, part_name
from tests.tasks.conftest import run_stage
from tests.tasks.test_pipeline import digests
from tests.tasks.test_safety import begun as begun, change, copy as copy

plain = online_rollouts.play_shards
METRICS = "reports/metrics/evolve_online-1.json"


def by_chance(stage: Any, name: str, jobs: list[Job], *arguments: Any, **options: Any) -> tuple[pa.Table, pa.Table]:
    """As it was played, but that a quarter of the episodes, by their id, counts as solved: so small an actor solves nothing."""
    episodes, steps = plain(stage, name, jobs, *arguments, **options)
    solved = pa.array([int(one[:2], 16) < 64 for one in episodes["episode_id"].to_pylist()])
    return episodes.set_column(episodes.schema.get_field_index("solved"), "solved", solved), steps


@pytest.fixture
def chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_rollouts, "play_shards", by_chance)


def curve(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / METRICS).read_text())["curve"]


class Killed(BaseException):
    pass


SEARCH = ("evolve_online.credit=dapo", "evolve_online.tasks=4", "evolve_online.samples=2", "evolve_online.shard=3", "evolve_online.iterations=1")


@pytest.fixture(scope="module")
def searched(begun: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A round of one iteration that searched without being disturbed."""
    folder = tmp_path_factory.mktemp("searched") / "run"
    shutil.copytree(begun, folder)
    change(folder, *SEARCH)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(online_rollouts, "play_shards", by_chance)
        run_stage(folder, "evolve_online", "1")
    assert curve(folder)[0]["rollout_batches"] > 2
    return folder


def test_dapo_plays_until_it_has_enough_groups_that_differ_and_counts_what_that_took(searched: Path) -> None:
    [point] = curve(searched)
    assert point["silent_share"] == 0 and point["groups"] - point["zero_variance_groups"] >= 4
    assert point["groups"] == 4 + point["resampled_groups"] and point["episodes"] == 2 * point["groups"]
    assert point["resampled_episodes"] == 2 * point["resampled_groups"] > 0 and 2 < point["rollout_batches"] <= 10
    names = read_table(searched / "data/rounds/1/online/episodes.parquet", "episodes")["episode_id"].to_pylist()
    assert len(names) == len(set(names)) == point["episodes"]


def test_a_stage_that_is_killed_while_it_searches_ends_with_the_same_bytes_and_plays_nothing_twice(
    copy: Path, searched: Path, chance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(copy, *SEARCH)

    def killing(stage: Any, name: str, *arguments: Any, **options: Any) -> tuple[pa.Table, pa.Table]:
        if name == part_name(1, 3):  # behind its first shard
            monkeypatch.setattr(type(stage), "fault", lambda stage, point: (_ for _ in ()).throw(Killed()) if point == "part" else None)
        return by_chance(stage, name, *arguments, **options)

    monkeypatch.setattr(online_rollouts, "play_shards", killing)
    with pytest.raises(Killed):
        run_stage(copy, "evolve_online", "1")
    monkeypatch.undo()
    monkeypatch.setattr(online_rollouts, "play_shards", by_chance)
    kept = sorted((copy / ".ratchet/scratch/evolve_online@1").rglob("iteration*.parquet"))
    assert kept
    played: list[str] = []

    def counting(stage: Any, shards: list[list[Job]], *arguments: Any) -> Any:
        played.extend(episode_id(job, "actor") for jobs in shards for job in jobs)
        return playing(stage, shards, *arguments)

    playing = rollouts._played
    monkeypatch.setattr(rollouts, "_played", counting)
    found = [name for path in kept if ".episodes." in path.name for name in read_table(path, "episodes")["episode_id"].to_pylist()]
    run_stage(copy, "evolve_online", "1")
    assert digests(copy) == digests(searched)
    everything = read_table(copy / "data/rounds/1/online/episodes.parquet", "episodes")["episode_id"].to_pylist()
    assert sorted([*found, *played]) == sorted(everything)


def test_dapo_gives_up_at_its_limit_with_one_clear_line(copy: Path) -> None:
    change(copy, "evolve_online.credit=dapo", "evolve_online.dapo.batches=2")
    with pytest.raises(RatchetError, match=r"^round 1, iteration 1: after evolve_online\.dapo\.batches=2 batches \(6 groups of 3 episodes\) only 0 of the 3"):
        run_stage(copy, "evolve_online", "1")


CHANGES: list[list[str]] = [[], ["evolve_online.credit=hgpo"], ["evolve_online.echo.weight=0.05", "evolve_online.success_sft.weight=0.1"]]


def test_what_is_switched_on_reaches_the_candidates(copy: Path, chance: None) -> None:
    seen = set()
    params = (copy / "params.yaml").read_text()
    for one in CHANGES:
        (copy / "params.yaml").write_text(params)
        change(copy, "evolve_online.iterations=1", "evolve_online.samples=6", "evolve_online.steps=2", *one)
        run_stage(copy, "evolve_online", "1")
        [point] = curve(copy)
        assert point["skipped_steps"] == 0 and 0 <= point["silent_share"] < 1, one
        assert ("observation" in point) == ("success_sft" in point) == (len(one) == 2)
        seen.add((copy / "models/rounds/1/candidates/iter-001/model.safetensors").read_bytes())
    assert len(seen) == len(CHANGES)


def of_tasks(number: int, **own: Any) -> Rollouts:
    """Of a stage that is told from nothing but its settings."""
    settings = {"tasks": 3, "samples": 2, "shard": 4, "null_policy": "keep", "credit": "grpo", "reward": "solved", **own}
    env = SimpleNamespace(name="toy", action_format="plain")
    stage = SimpleNamespace(key="1", title="evolve_online@1", settings=SimpleNamespace(seed=7, env=env, evolve_online=SimpleNamespace(**settings)))
    tasks = [Task("toy", "1", f"toy-{index}", "train", "count", "room") for index in range(number)]
    return Rollouts(stage, tasks)  # type: ignore[arg-type]


def test_an_iteration_draws_every_task_once_before_any_again_and_then_with_new_samples() -> None:
    draws = list(islice(of_tasks(7)._draws(2, None, []), 16))  # type: ignore[arg-type]
    assert [one.again for one in draws] == [0] * 7 + [1] * 7 + [2] * 2
    assert draws[:7] != sorted(draws[:7], key=lambda one: one.task.task_id) and len(set(draws)) == 16
    assert [one.task for one in draws[:7]] == [one.task for one in draws[7:14]]
    assert draws[:7] != list(islice(of_tasks(7)._draws(3, None, []), 7))  # type: ignore[arg-type]
    assert len({of_tasks(7)._group(2, one) for one in draws}) == 16


def test_tasks_that_doing_nothing_solves_are_left_out_where_the_settings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def play(stage: Any, name: str, jobs: list[Job], policy: Any, pool: Any, *, shard: int) -> tuple[pa.Table, pa.Table]:
        asked.append((name, policy.make(0, "").act(None)[1]))
        rows = [{"task_id": job.task.task_id, "solved": int(job.task.task_id[4:]) % 2 == 0, "episode_id": str(number), "n_steps": 1}
                for number, job in enumerate(jobs)]
        return table_of("episodes", rows), table_of("steps", [])

    monkeypatch.setattr(online_rollouts, "play_shards", play)
    monkeypatch.setattr(online_rollouts, "benchmark", lambda name: SimpleNamespace(null_action="wait"))
    monkeypatch.setattr(Rollouts, "_batch", lambda self, iteration, batch, draws, *rest: ([one.task.task_id for one in draws], None))
    kept = of_tasks(8).play(1, None, None)  # type: ignore[arg-type]
    assert kept.null_tasks == 0 and not asked and any(int(name[4:]) % 2 == 0 for name in kept.episodes)
    found = of_tasks(8, null_policy="leave_out").play(1, None, None)  # type: ignore[arg-type]
    assert len(found.episodes) == 3 and all(int(name[4:]) % 2 for name in found.episodes) and found.null_tasks > 0
    assert set(asked) <= {(f"null 001 batch {number:02d}", "wait") for number in (1, 2, 3)} and len(asked) == len(set(asked)) >= 2
    with pytest.raises(RatchetError, match="doing nothing solves 4 of 8 training tasks, and without them less than evolve_online.tasks=5"):
        of_tasks(8, null_policy="leave_out", tasks=5).play(1, None, None)  # type: ignore[arg-type]
