"""ALFWorld behind the environment interface: episodes, hostile text, files, the user's own data."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from ratchet.envs.alfworld import (
    AlfworldEnv,
    AlfworldExpert,
    Oracle,
    export_game,
    game_task,
    generate_games,
    user_games,
    user_task,
    write_games,
)
from ratchet.envs.alfworld.userdata import data_root
from ratchet.envs.base import Task
from ratchet.errors import RatchetError

GAMES = {game.task_id: game for game in generate_games("train", 12, 21, 6)}
TASKS = [game_task(game, "train") for game in GAMES.values()]


def play(env: AlfworldEnv, task: Task, limit: int = 50) -> list[str]:
    """The expert's episode as text."""
    turn, expert = env.reset(task), AlfworldExpert()
    expert.reset(task, turn)
    lines = [turn.observation]
    while not turn.done and len(lines) < limit:
        turn = env.step(expert.act(turn)[1])
        lines.append(turn.observation)
    return lines


def test_an_episode_starts_with_the_task_and_ends_with_the_only_reward():
    env = AlfworldEnv(GAMES)
    task = TASKS[0]
    turn, oracle = env.reset(task), Oracle(GAMES[task.task_id])
    oracle.reset(task, turn)
    assert turn.observation.startswith("-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room.")
    assert turn.observation.endswith(f"\n\nYour task is to: {GAMES[task.task_id].sentence}.")
    rewards = []
    while not turn.done:
        turn = env.step(oracle.act(turn)[1])
        rewards.append(turn.reward)
        assert turn.solved == turn.done == (turn.score == 1.0)
    assert rewards[-1] == 1.0 and sum(rewards) == 1.0


def test_after_the_end_the_last_turn_stays():
    env = AlfworldEnv(GAMES)
    last = play(env, TASKS[0])[-1]
    for action in ("look", "go to somewhere"):
        turn = env.step(action)
        assert (turn.observation, turn.done, turn.solved, turn.score, turn.reward, turn.valid) == (last, True, True, 1.0, 0.0, False)


def test_a_wrong_command_does_nothing_and_says_so():
    env = AlfworldEnv(GAMES)
    before = env.reset(TASKS[0])
    turn = env.step("fly to the moon")
    assert (turn.observation, turn.valid, turn.admissible) == ("Nothing happens.", False, before.admissible)
    assert env.step(before.admissible[0]).valid


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_is_either_admissible_or_does_nothing(action: str):
    env = AlfworldEnv(GAMES)
    before = env.reset(TASKS[1])
    turn = env.step(action)
    assert turn.valid == (action.strip() in before.admissible)
    assert turn.valid or turn.observation == "Nothing happens."


@pytest.mark.parametrize(
    "action", ["x" * 2**20, "go to " + "cabinet 1 " * 10**5, "take \x00 from \ud800", "\x1b[2J", "look\nlook", "use \u202e", "  "]
)
def test_hostile_text_does_nothing_quickly(action: str):
    env = AlfworldEnv(GAMES)
    env.reset(TASKS[0])
    begin = time.perf_counter()
    assert env.step(action).observation == "Nothing happens."
    assert time.perf_counter() - begin < 0.1


def test_every_listed_command_does_something():
    env = AlfworldEnv(GAMES)
    for task in TASKS[:6]:
        turn = env.reset(task)
        expert = AlfworldExpert()
        expert.reset(task, turn)
        path: list[str] = []
        while not turn.done:
            for command in turn.admissible:
                env.reset(task)
                for action in path:
                    env.step(action)
                assert env.step(command).valid, (task.task_id, path, command)
            env.reset(task)
            for action in path:
                turn = env.step(action)
            path.append(expert.act(turn)[1])
            turn = env.step(path[-1])


def test_one_instance_plays_the_same_task_again_the_same():
    env = AlfworldEnv(GAMES)
    first = [play(env, task) for task in TASKS]
    assert [play(env, task) for task in reversed(TASKS)] == first[::-1]


def test_the_same_task_reads_the_same_in_another_process(tmp_path: Path):
    write_games(tmp_path / "games.parquet", GAMES.values())
    code = (
        "import sys; from ratchet.envs.alfworld import *\n"
        "env = AlfworldEnv(sys.argv[1]); game = next(iter(env.games.values())); turn = env.reset(game_task(game, 'train'))\n"
        "print(repr((turn.observation, turn.admissible)))\n"
        "print([name in sys.modules for name in ('torch', 'textworld', 'alfworld')])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "games.parquet")], capture_output=True, check=True, text=True)
    turn = AlfworldEnv(GAMES).reset(TASKS[0])
    assert done.stdout.splitlines() == [repr((turn.observation, turn.admissible)), "[False, False, False]"]


def test_a_task_that_is_not_there_is_named():
    env = AlfworldEnv(GAMES)
    stranger = game_task(generate_games("test", 1, 1, 6)[0], "test")
    with pytest.raises(RatchetError, match=stranger.task_id):
        env.reset(stranger)
    with pytest.raises(RatchetError, match="make the tasks again"):
        env.reset(Task("alfworld", "0.4.2", TASKS[0].task_id, "train", "", ""))


def test_misuse_is_refused():
    with pytest.raises(RatchetError, match="unknown ALFWorld engine"):
        AlfworldEnv(GAMES, "fast")  # type: ignore[arg-type]
    with pytest.raises(RatchetError, match="no games"):
        AlfworldEnv({})
    with pytest.raises(RatchetError, match="before reset"):
        AlfworldEnv(GAMES).step("look")


def test_the_version_says_that_games_are_generated():
    assert AlfworldEnv(GAMES).version == "0.4.2+generated.r6"


@pytest.fixture
def user_data(tmp_path: Path) -> Path:
    """json_2.1.1 as downloaded: good games, an unsolvable one, a sliced and a movable one, another file."""
    for number, game in enumerate(GAMES.values()):
        for split in ("train", "valid_seen", "valid_unseen"):
            folder = tmp_path / "json_2.1.1" / split / f"{game.task_type}-{game.target}-None-{game.parent}-{game.scene}"
            export_game(game, folder / f"trial_T2019_{number}")
    game = next(iter(GAMES.values()))
    split = tmp_path / "json_2.1.1" / "valid_seen"
    path = export_game(game, split / f"{game.task_type}-Pan-None-Shelf-{game.scene}" / "trial_bad")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"solvable": False}))
    export_game(game, split / "pick_and_place_simple-AppleSliced-None-Shelf-7" / "trial_1")
    export_game(game, split / "pick_and_place_with_movable_recep-Pen-Mug-Shelf-7" / "trial_1")
    (split / "README").write_text("x")
    return tmp_path


def test_the_users_data_is_found_and_played_like_the_generated_games(user_data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(user_data))
    games = user_games(None, "valid_seen")
    assert len(games) == len(GAMES) and data_root() == user_data / "json_2.1.1"
    env, generated = AlfworldEnv(games, "compiled"), AlfworldEnv(GAMES)
    assert env.version == "0.4.2"
    for task_id, found in games.items():
        assert (data_root() / task_id / "game.tw-pddl").is_file()
        task = user_task(found, "seen")
        original = json.loads(found.path.read_text())["task_id"]
        assert (task.stratum, task.cluster) == (GAMES[original].task_type, f"FloorPlan{GAMES[original].scene}")
        assert play(env, task) == play(generated, game_task(GAMES[original], "train"))


def test_missing_user_data_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(RatchetError, match="ALFWORLD_DATA is not set"):
        user_games(None, "train")
    with pytest.raises(RatchetError, match=r"json_2\.1\.1 does not exist"):
        user_games(tmp_path, "train")


def test_a_damaged_user_game_is_named(user_data: Path):
    path = next((user_data / "json_2.1.1" / "train").glob("*/*/game.tw-pddl"))
    for content in ("{", "[]", json.dumps({"solvable": True}), "\udcff"):
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(RatchetError, match=r"game\.tw-pddl"):
            user_games(user_data, "train")
