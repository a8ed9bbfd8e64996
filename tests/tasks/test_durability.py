"""A stage that is interrupted anywhere and run again ends with the bytes of one that was not; nothing is played twice or lost."""

from __future__ import annotations

import importlib
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ratchet.files
import tasks.outs
import tasks.rollouts
from ratchet.settings import load
from tasks.common import Stage
from tests.tasks.conftest import run_stage
from tests.tasks.test_pipeline import digests

STAGES = [
    ("prepare", None), ("demonstrate", None), ("warm_start", "small"), ("harvest", "1"), ("label", "1"), ("check", "1"), ("buffer", "1"),
    ("fit_meter", "1"), ("fit_critic", "1"), ("evolve_offline", "1"), ("evolve_online", "1"),
    ("evaluate", "1"), ("drift", "1"), ("baseline", None), ("decide", "1"), ("final", None), ("report", None), ("seal", None),
]  # fmt: skip
PLAYING = ("demonstrate", "harvest", "evolve_online", "evaluate", "final")


class Killed(BaseException):
    """A kill as far as a process can do it to itself: nothing catches it."""


def stage_of(folder: Path, name: str, key: str | None) -> Stage:
    return Stage(folder, load(folder / "params.yaml"), name, key)


def delete_outs(stage: Stage) -> None:
    """What DVC does before it runs a stage."""
    for relative in [*stage.entry["outs"], *stage.entry["metrics"]]:
        path = stage.root / relative
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def attempt(folder: Path, name: str, key: str | None) -> None:
    """As `dvc repro` would start the stage."""
    delete_outs(stage_of(folder, name, key))
    run_stage(folder, name, key)


def killed_at(point: str, folder: Path, name: str, key: str | None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs the stage until its fault point; returns its scratch folder."""
    scratch: list[Path] = []

    def fault(stage: Stage, at: str) -> None:
        if at == point:
            scratch.append(stage.scratch)
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Stage, "fault", fault)
        with pytest.raises(Killed):
            attempt(folder, name, key)
    return scratch[0]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each shard was played to its end."""
    counts: Counter[str] = Counter()
    write = tasks.rollouts.write_part

    def counting(base: Path, *tables: Any) -> Any:
        counts[base.name] += 1
        return write(base, *tables)

    monkeypatch.setattr(tasks.rollouts, "write_part", counting)
    return counts


@pytest.mark.parametrize(("name", "key"), STAGES, ids=[name for name, _ in STAGES])
def test_a_stage_that_is_killed_at_each_of_its_points_ends_with_the_same_bytes_and_plays_nothing_twice(
    finished: Path, copy: Path, name: str, key: str | None, monkeypatch: pytest.MonkeyPatch, played: Counter[str]
) -> None:
    points = ["out", "place"]
    if name in PLAYING:
        points.insert(0, "part")
    if name in ("harvest", "evolve_online"):  # what follows is one code for all stages
        points = ["part", "out", "whole", "place", "placed"]
    ran: list[int] = []
    module = importlib.import_module(f"tasks.{name}")
    run = module.run
    monkeypatch.setattr(module, "run", lambda stage: (ran.append(1), run(stage)))
    for point in points:
        scratch = killed_at(point, copy, name, key, monkeypatch)
        (scratch / "outs").mkdir(exist_ok=True)
        for left in ("torn.parquet.1.part", ".tmpTORN"):  # a kill in the middle of writing leaves such files
            (scratch / "outs" / left).write_bytes(b"torn")
    attempt(copy, name, key)
    assert digests(copy) == digests(finished)
    assert len(ran) == points.index("place") + 1, "outs that were whole once are not made again"
    assert set(played.values()) == ({1} if name in PLAYING else set())


def test_every_stage_of_dvc_yaml_is_killed_here(finished: Path) -> None:
    from tests.tasks.conftest import order

    assert {name for name, _ in STAGES} == {name for name, _ in order(finished)}


@pytest.mark.parametrize(("name", "key", "call"), [("demonstrate", None, "replace"), ("evolve_online", "1", "flush")])
def test_a_disk_that_is_full_at_any_write_costs_only_what_was_in_progress(
    finished: Path, copy: Path, name: str, key: str | None, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails the 3rd, the 9th, the 27th, … fsync or rename, each in one attempt, until an attempt comes through."""
    real = {"flush": os.fsync, "replace": os.replace}[call]
    limit, failures = 3, 0
    while True:
        count = 0

        def failing(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == limit:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync" if call == "flush" else "replace", failing)
            try:
                attempt(copy, name, key)
                break
            except OSError as error:
                assert error.errno == 28
        failures, limit = failures + 1, limit * 3
    assert failures >= 2 and digests(copy) == digests(finished)
    assert not list(copy.rglob("*.part"))


def test_outs_that_dvc_has_recorded_are_made_again_when_asked_for(finished: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    module = importlib.import_module("tasks.baseline")
    run = module.run
    monkeypatch.setattr(module, "run", lambda stage: (ran.append("ran"), run(stage)))
    for _ in range(2):
        attempt(copy, "baseline", None)
    assert ran == ["ran", "ran"] and digests(copy) == digests(finished)
    run_stage(copy, "seal")
    assert not list((copy / ".ratchet/scratch/baseline").iterdir()), "and nothing is kept of them"


def test_whole_outs_that_were_damaged_since_are_put_aside_by_name_and_made_again(
    finished: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scratch = killed_at("placed", copy, "label", "1", monkeypatch)
    damaged = scratch / "whole/data/rounds/1/labels/labels.parquet"
    damaged.write_bytes(damaged.read_bytes()[:100])
    attempt(copy, "label", "1")
    assert digests(copy) == digests(finished)
    assert "labels.parquet has other bytes than were written; the stage is run again" in caplog.text


def test_outs_are_placed_where_there_are_no_hard_links(finished: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*arguments: Any, **named: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(tasks.outs.os, "link", no_links)
    attempt(copy, "baseline", None)
    assert digests(copy) == digests(finished)


def killed_late(finished: Path, folder: Path, name: str) -> Path:
    """A copy of the run in which round 1's stage was killed when only its outs were not whole yet."""
    shutil.copytree(finished, folder)
    with pytest.MonkeyPatch.context() as patch:
        killed_at("whole", folder, name, "1", patch)
    return folder


@pytest.fixture(scope="module")
def _harvested(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed_late(finished, tmp_path_factory.mktemp("late") / "run", "harvest")


@pytest.fixture(scope="module")
def _evolved(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed_late(finished, tmp_path_factory.mktemp("late") / "run", "evolve_online")


@pytest.fixture
def harvested(_harvested: Path, tmp_path: Path) -> Path:
    shutil.copytree(_harvested, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def evolved(_evolved: Path, tmp_path: Path) -> Path:
    shutil.copytree(_evolved, tmp_path / "copy")
    return tmp_path / "copy"


def kept(folder: Path, stage: str, file: str) -> Path:
    [path] = (folder / ".ratchet/scratch" / stage).glob(f"*/{file}")
    return path


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("expert-00000.steps.parquet", "truncated", "its steps have other bytes than were written"),
        ("random-00000.episodes.parquet", "flipped", "its episodes have other bytes than were written"),
        ("expert-00000.steps.parquet", "gone", "its steps are missing"),
        ("random-00000.json", "truncated", "its marker cannot be read"),
    ],
)
def test_a_damaged_part_is_put_aside_by_name_counted_and_played_again(
    finished: Path, harvested: Path, file: str, damage: str, said: str, played: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = kept(harvested, "harvest@1", f"parts/{file}")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "truncated" else data[:50] + bytes([data[50] ^ 1]) + data[51:])
    if damage == "gone":
        path.unlink()
    attempt(harvested, "harvest", "1")
    assert digests(harvested) == digests(finished)
    line = next(record.getMessage() for record in caplog.records if "damaged" in record.getMessage())
    assert file.partition(".")[0] in line and said in line and "played again" in line and "\n" not in line
    assert list(played) == [file.partition(".")[0]]
    assert ratchet.files.CLOCK.counts["damaged"] == 1


def test_a_part_of_other_episodes_is_not_taken(finished: Path, harvested: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = kept(harvested, "harvest@1", "parts")
    for kind in ("json", "episodes.parquet", "steps.parquet"):
        shutil.copy(parts / f"expert-00000.{kind}", parts / f"random-00000.{kind}")
    attempt(harvested, "harvest", "1")
    assert digests(harvested) == digests(finished) and "other episodes than those of its shard" in caplog.text


def test_parts_of_policies_whose_names_hold_dots_are_told_apart(tmp_path: Path, finished: Path) -> None:
    from ratchet.episodes.files import read_table
    from tasks.parts import read_part, read_parts, write_part

    tables = [read_table(finished / f"data/rounds/1/harvest/{kind}.parquet", kind) for kind in ("episodes", "steps")]
    write_part(tmp_path / "qwen2.5-00000", *tables)
    assert read_part(tmp_path / "qwen2.5-00001") is None and list(read_parts(tmp_path)) == ["qwen2.5-00000"]


@pytest.mark.parametrize("lost", ["parts/iteration 001-00000.steps.parquet", "candidates/iter-001/model.safetensors", "checkpoint/model.safetensors"])
def test_a_round_whose_kept_work_is_damaged_is_learned_again_to_the_same_bytes(
    finished: Path, evolved: Path, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = kept(evolved, "evolve_online@1", lost)
    path.write_bytes(path.read_bytes()[:60])
    attempt(evolved, "evolve_online", "1")
    assert digests(evolved) == digests(finished)
    assert "again" in caplog.text and lost.partition("/")[0].rstrip("s") in caplog.text


def test_a_stage_that_runs_again_never_writes_into_the_files_that_it_linked(copy: Path) -> None:
    """DVC's cache may hold them."""
    placed = copy / "data/rounds/0/decision/decision.json"
    run = importlib.import_module("tasks.baseline").run
    run(stage_of(copy, "baseline", None))
    with placed.open("rb") as held:  # so that its inode is not given to another file
        run(stage_of(copy, "baseline", None))
        assert os.fstat(held.fileno()).st_ino != placed.stat().st_ino
