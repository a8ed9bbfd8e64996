"""Generated ALFWorld games: repeatable, disjoint between splits, solvable, and safe on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.envs.alfworld import TASK_TYPES, generate_games, held_out_scenes, read_games, world_from_game, write_games
from ratchet.envs.alfworld.games import content_hash, game_task, split_scenes
from ratchet.envs.alfworld.layouts import room_kind, rules
from ratchet.envs.alfworld.pddl import game_data, world_from_data
from ratchet.errors import RatchetError

PRINT_IDS = (
    "from ratchet.envs.alfworld import generate_games, world_from_game;"
    "import hashlib;"
    "games = generate_games('train', 60, 3, 6);"
    "print([g.task_id for g in games], hashlib.sha256(repr([(g, world_from_game(g).object_names) for g in games]).encode()).hexdigest())"
)


def test_the_same_seed_gives_the_same_games_in_other_processes():
    outputs = set()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        outputs.add(subprocess.run([sys.executable, "-c", PRINT_IDS], env=environment, capture_output=True, check=True).stdout)
    assert len(outputs) == 1
    assert generate_games("train", 60, 3, 6)[0].task_id in outputs.pop().decode()


def test_another_seed_gives_other_games():
    first, second = ({game.task_id for game in generate_games("train", 60, seed, 6)} for seed in (1, 2))
    assert not first & second


def test_a_longer_list_begins_with_the_shorter_one():
    assert generate_games("test", 30, 5, 6) == generate_games("test", 60, 5, 6)[:30]


@pytest.mark.parametrize("split", ["train", "seen", "select", "confirm", "test"])
def test_games_are_different_and_balanced_over_task_types(split: str):
    games = generate_games(split, 120, 4, 6)
    assert len({content_hash(game, wording=False) for game in games}) == 120
    assert Counter(game.task_type for game in games) == dict.fromkeys(TASK_TYPES, 20)
    assert {game.scene for game in games} <= set(split_scenes(split))


def test_panels_share_scenes_and_no_other_split_does():
    assert split_scenes("select") == split_scenes("confirm") == held_out_scenes()
    assert Counter(room_kind(number) for number in held_out_scenes()) == {"kitchen": 3, "living": 3, "bedroom": 3, "bathroom": 3}
    assert len(split_scenes("train")) == 84 and split_scenes("train") == split_scenes("seen")
    assert len(split_scenes("test")) == 24 and not set(split_scenes("test")) & set(rules().train_scenes)
    assert not set(split_scenes("train")) & set(held_out_scenes())


def test_splits_share_no_game_whatever_their_seeds():
    hashes = {
        (split, seed): {content_hash(game, wording=False) for game in generate_games(split, 150, seed, 6)}
        for split in ("train", "seen", "select", "confirm", "test")
        for seed in (1, 2)
    }
    for (split, seed), mine in hashes.items():
        for (other, other_seed), theirs in hashes.items():
            if split != other:
                assert not mine & theirs, (split, seed, other, other_seed)


@pytest.mark.parametrize("room", [6, 14, None])
def test_rooms_keep_to_their_size_and_targets_are_not_yet_in_place(room: int | None):
    for game in generate_games("train", 60, 6, room):
        world = world_from_game(game)
        assert room is None or len(game.receptacles) <= room
        assert len(set(world.object_names)) == len(world.object_names)
        if game.task_type != "look_at_obj_in_light":
            for r, objects in enumerate(world.inside):
                assert world.receptacle_types[r] != world.parent or all(world.object_types[o] != world.target for o in objects)


def test_bounded_rooms_keep_one_receptacle_a_place_and_full_ones_may_share():
    for game in generate_games("train", 60, 6, 14):
        places = world_from_game(game).place_of
        assert len(set(places)) == len(places)
    full = [world_from_game(game).place_of for game in generate_games("train", 60, 6, None)]
    assert any(len(set(places)) < len(places) for places in full)


@pytest.mark.parametrize("room", [6, None])
def test_a_compact_game_and_its_pddl_file_give_the_same_world(room: int | None):
    for game in generate_games("train", 36, 7, room):
        assert world_from_game(game) == world_from_data(game_data(game))


def test_games_are_generated_fast_enough_for_thousands():
    begin = time.perf_counter()
    generate_games("train", 600, 8, 6)
    assert (time.perf_counter() - begin) / 600 < 0.003


def test_tasks_name_what_they_are_and_that_they_are_generated():
    game = generate_games("select", 1, 1, 6)[0]
    task = game_task(game, "select")
    assert task.task_id.startswith(f"generated/r6/{game.task_type}/FloorPlan{game.scene}/")
    assert (task.env, task.env_version, task.split) == ("alfworld", "0.4.2+generated.r6", "select")
    assert (task.stratum, task.cluster) == (game.task_type, f"FloorPlan{game.scene}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("valid", 1, 1, 6), "unknown split"),
        (("train", 1, 1, 2), "at least 4"),
        (("train", 1, 1, 6, [1]), "not of split"),
        (("train", 1, 1, 6, [409], ["pick_heat_then_place_in_recep"]), "allows the task type"),
        (("train", 1, 1, 6, None, ["pick_flowers"]), "unknown task type"),
    ],
)
def test_impossible_requests_say_what_is_wrong(arguments: tuple, words: str):
    with pytest.raises(RatchetError, match=words):
        generate_games(*arguments)


def test_games_survive_the_disk_and_equal_games_give_equal_bytes(tmp_path: Path):
    games = generate_games("confirm", 48, 9, 6)
    write_games(tmp_path / "a.parquet", games)
    write_games(tmp_path / "b.parquet", games)
    assert list(read_games(tmp_path / "a.parquet").items()) == [(game.task_id, game) for game in games]
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert (tmp_path / "a.parquet").stat().st_size < 48 * 1000


def test_a_damaged_file_is_named_with_a_way_out(tmp_path: Path):
    path = tmp_path / "games.parquet"
    write_games(path, generate_games("confirm", 24, 9, 6))
    whole = path.read_bytes()
    for position in range(10, len(whole), max(len(whole) // 40, 1)):
        changed = bytearray(whole)
        changed[position] ^= 0xFF
        path.write_bytes(changed)
        try:
            survived = read_games(path)
        except RatchetError as error:
            assert str(path) in str(error) and "generate the games again" in str(error)
        else:  # the byte was one that carries nothing, such as padding or a statistic
            path.write_bytes(whole)
            assert survived == read_games(path)
    for content in (b"", b"not parquet", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(RatchetError, match=r"games\.parquet is damaged"):
            read_games(path)


def test_a_file_whose_games_were_exchanged_is_refused(tmp_path: Path):
    game = generate_games("confirm", 1, 9, 6)[0]
    write_games(tmp_path / "games.parquet", [replace(game, target="Mug")])
    with pytest.raises(RatchetError, match="does not match its content"):
        read_games(tmp_path / "games.parquet")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(RatchetError, match=r"nowhere\.parquet does not exist"):
        read_games(tmp_path / "nowhere.parquet")
