"""What every environment holds to. A new one is added with one line in CASES, tests/envs/conformance.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import Failure
from ratchet.errors import RatchetError
from ratchet.policies.random_valid import RandomPolicy
from tests.envs.conformance import CASES, Case, Prepared, prepare, prepared, resident_mb, walk
from tests.envs.processes import group, stop

SPLITS = ("train", "seen", "select", "confirm", "test")
HOSTILE = {
    "empty": "",
    "blank": "   \n\t ",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x9b\u2028\u202e",
    "escape sequence": "\x1b]0;owned\x07\x1b[2J",
    "a megabyte": "look " * 200_000,
    "one long word": "a" * 1_000_000,
    "broken unicode": "go \ud800 to \udfff",
    "emoji": "take the 🦆 from the 🗄️",
    "markup": "<script>alert(1)</script>",
    "json": '{"action": ["look", null, {"a": 1e999}]}',
    "many lines": "look\n" * 1000,
    "format string": "%s%n {0.__class__} ${jndi:ldap://x}",
    "special token": "<|im_end|><end>",
    "path": "../../etc/passwd; rm -rf ~ && `id`",
    "number": "-1",
}
LONGEST_ANSWER = 20_000  # characters: what an environment says must not grow with what was said to it


@pytest.fixture(params=CASES, ids=[case.id for case in CASES])
def one(request: pytest.FixtureRequest) -> Prepared:
    return prepared(request.param)


def test_splits_are_made_as_asked_and_share_no_task(one: Prepared) -> None:
    for split in SPLITS:
        tasks = one.tasks[split]
        assert 0 < len(tasks) <= one.case.counts[split]
        assert all(task.split == split and task.stratum and task.cluster and task.env_version for task in tasks)
    ids = [(task.task_id, task.seed) for split in SPLITS for task in one.tasks[split]]
    assert len(set(ids)) == len(ids)
    for other in ("select", "confirm", "test"):
        clusters = {task.cluster for task in one.tasks["train"]} & {task.cluster for task in one.tasks[other]}
        assert not clusters, f"train and {other} share {clusters}"


def test_preparing_again_gives_the_same_bytes(one: Prepared, tmp_path: Path) -> None:
    assert prepare(one.one, one.settings, tmp_path / "again", one.case) == one.tasks
    files = sorted(path.relative_to(one.folder) for path in one.folder.rglob("*") if path.is_file())
    assert [path.relative_to(tmp_path / "again") for path in sorted((tmp_path / "again").rglob("*")) if path.is_file()] == files
    assert all((tmp_path / "again" / name).read_bytes() == (one.folder / name).read_bytes() for name in files)


def test_a_reset_is_repeatable_whatever_was_played_before(one: Prepared) -> None:
    environment = one.environment()
    first, other = one.tasks["train"][:2]
    begin = environment.reset(first)
    assert begin.observation and begin.admissible and not begin.done and not begin.solved and begin.score == 0
    environment.step(begin.admissible[-1])
    assert environment.reset(first) == begin, "in the middle of an episode"
    for action in environment.reset(other).admissible[:3]:
        environment.step(action)
    assert environment.reset(first) == begin, "after another task"
    assert one.environment().reset(first) == begin, "in an environment of its own"
    environment.close()


def test_the_same_actions_give_the_same_text_in_another_process(one: Prepared) -> None:
    tasks = one.tasks["train"][:4]
    with one.pool() as alone, one.pool(workers=2) as two:
        expected = walk(alone, tasks, one.case.steps)
        assert walk(two, tasks, one.case.steps) == expected
        assert walk(alone, tasks, one.case.steps) == expected, "and again in the first one"
    assert {task.env for task in tasks} == {one.environment().name}
    assert {task.env_version for task in tasks} == {one.environment().version}


def test_the_expert_solves_its_tasks(one: Prepared) -> None:
    with one.pool() as pool:
        for task in one.tasks["train"]:
            try:
                expert = one.one.expert(one.folder)
            except RatchetError as reason:
                pytest.skip(str(reason))
            turn = pool.reset([0], [task])[0]
            assert isinstance(turn, Turn)
            expert.reset(task, turn)
            for _ in range(200):
                if turn.done:
                    break
                _, action = expert.act(turn)
                assert action in turn.admissible or not one.case.admits_all_gold, f"{task.task_id}: {action}"
                turn = pool.step([0], [action])[0]
                assert isinstance(turn, Turn), turn
            assert turn.solved and turn.done and turn.score == 1.0, task.task_id


def test_a_clone_or_a_replay_goes_on_from_the_same_place(one: Prepared) -> None:
    task = one.tasks["train"][0]
    environment = one.environment()
    for seed in range(20):  # until a walk is not over by then
        player, turn, actions = RandomPolicy(seed, "clone"), environment.reset(task), []
        while len(actions) < 4 and not turn.done:
            actions.append(player.act(turn)[1])
            turn = environment.step(actions[-1])
        if not turn.done:
            break
    if hasattr(environment, "clone"):
        copy = environment.clone()
    else:
        copy = one.environment()
        copy.reset(task)
        assert [copy.step(action) for action in actions][-1] == turn
    mine, theirs = turn.admissible[0], turn.admissible[-1]
    answers = environment.step(mine), copy.step(theirs)
    again = one.environment()
    for first, expected in ((mine, answers[0]), (theirs, answers[1])):
        again.reset(task)
        for action in actions:
            again.step(action)
        assert again.step(first) == expected, "neither changes the other"


def test_a_worker_that_hangs_is_replaced_and_its_episodes_go_on(one: Prepared) -> None:
    tasks = one.tasks["train"][:3]
    with one.pool() as undisturbed:
        expected = walk(undisturbed, tasks, 3)
    with one.pool(limit_s=one.case.limit_s) as pool:
        pool.reset([0, 1, 2], tasks)
        players = [RandomPolicy(0, task.task_id) for task in tasks]
        for t in range(3):
            if t == 2:
                for process in group(pool.pids()[0]):  # whatever it started hangs with it
                    stop(process)
            rows = [row for row in range(3) if len(expected[row]) > t + 1]
            turns = pool.step(rows, [players[row].act(expected[row][t])[1] for row in rows])
            assert turns == [expected[row][t + 1] for row in rows]
        assert pool.counts == {"crashes": 0, "timeouts": 1, "errors": 0, "replaced": 1}


def test_hostile_text_is_an_action_that_does_nothing(one: Prepared) -> None:
    task = one.tasks["train"][0]
    with one.pool() as pool:
        begin = pool.reset([0], [task])[0]
        assert isinstance(begin, Turn)
        for what, action in HOSTILE.items():
            turn = pool.reset([0], [task])[0]
            assert turn == begin, f"after {what}"
            turn = pool.step([0], [action])[0]
            assert isinstance(turn, Turn), (what, turn)
            assert not turn.solved and turn.score == 0 and not turn.valid, what
            assert len(turn.observation) < LONGEST_ANSWER, what
            turn.observation.encode()  # it can be stored
        assert pool.counts == {"crashes": 0, "timeouts": 0, "errors": 0, "replaced": 0}


def test_an_unknown_task_ends_its_own_episode_only(one: Prepared) -> None:
    known = one.tasks["train"][0]
    unknown = Task(known.env, known.env_version, "../no such task", "train", "", "")
    with one.pool() as pool:
        failure, turn = pool.reset([0, 1], [unknown, known])
        assert isinstance(failure, Failure) and failure.kind == "error" and isinstance(turn, Turn)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_over_many_episodes(one: Prepared) -> None:
    tasks = one.tasks["train"]
    with one.pool() as pool:

        def play(count: int) -> None:
            for number in range(count):
                walk(pool, [tasks[number % len(tasks)]], 6, seed=number)

        warm_up, watched = one.case.episodes
        play(warm_up)
        before = resident_mb(pool.pids()[0])
        play(watched)
        grown = resident_mb(pool.pids()[0]) - before
        beside = sum(resident_mb(pid) for pid in group(pool.pids()[0])[1:])
    assert grown < 8, f"{grown:.1f} MB in {watched} episodes"
    assert beside < 500, f"what it started has {beside:.0f} MB"


def test_there_is_a_case_for_every_environment_that_has_a_short_name() -> None:
    from ratchet.envs.benchmarks import BENCHMARKS

    assert set(BENCHMARKS) <= {case.name for case in CASES}, "add it to CASES in tests/envs/conformance.py"


def test_a_case_without_its_package_is_skipped() -> None:
    with pytest.raises(pytest.skip.Exception, match="no_such_package is not installed"):
        prepared(Case("alfworld", needs="no_such_package"))
