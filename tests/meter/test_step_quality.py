"""Directions of steps against labels: AgentProcessBench's form, exact values, shortest plans."""

from __future__ import annotations

import copy
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.envs.alfworld.compiled import CompiledGame
from ratchet.envs.alfworld.env import AlfworldEnv
from ratchet.envs.alfworld.games import game_task, generate_games
from ratchet.envs.alfworld.oracle import Oracle
from ratchet.envs.proving_ground.exact import solve
from ratchet.envs.proving_ground.generate import tasks_of, version_of, world_of
from ratchet.errors import RatchetError
from ratchet.evaluation.alfworld_plan import plan_length
from ratchet.evaluation.step_labels import step_labels
from ratchet.evaluation.step_quality import read_process_bench, step_quality, tune_dead_zone

FILE = Path(__file__).with_name("process_bench.jsonl")


def test_trajectories_are_read_with_the_labels_of_their_steps() -> None:
    first, second = read_process_bench(FILE)
    assert first.id == "searchR1_hotpotqa:0:0" and first.solved and first.labels.tolist() == [0, -1, 1]
    assert first.turns[0] == ("Use the tool.\n\nWho wrote it?", '{"arguments": "{\\"q\\": \\"author\\"}", "name": "search"}')
    assert first.turns[2] == ("Mary.", "Mary wrote it.")
    assert not second.solved and second.turns == [("Cancel my order.", "Done.")]  # what nobody judged is no step


@pytest.mark.parametrize("line", ['{"messages": []}', "no json", '{"messages": [{"role": "assistant", "content": "x"}], "step_labels": {"0": 2}}',
                                  '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "step_labels": {"0": 1, "1": 1}}'])
def test_what_is_in_another_form_is_refused_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(FILE.read_text() + line + "\n")
    with pytest.raises(RatchetError, match=r"mine.jsonl:3: is not of AgentProcessBench's form"):
        read_process_bench(path)


def test_accuracies_are_those_counted_by_hand() -> None:
    delta, labels = np.array([3.0, 0.1, -2.0, 0.2, 5.0]), np.array([1, 0, -1, -1, 1])
    found = step_quality(delta, labels, (np.array([4.0, 0.5, -3.0]), np.array([1, 0, -1])))
    assert 0.5 <= found["dead_zone"] < 3 and found["accuracy"] == 0.8 and found["balanced_accuracy"] == pytest.approx((1 + 1 + 0.5) / 3)
    assert found["signed_accuracy"] == 0.75 and found["signed_balanced_accuracy"] == 0.75 and found["counts"] == {"-1": 2, "0": 1, "1": 2}
    assert step_quality(np.zeros(4), np.array([1, 1, -1, -1]))["signed_balanced_accuracy"] == 0.5  # nothing said is a coin's worth
    assert tune_dead_zone(np.array([]), np.array([])) == 0.0


def test_the_proving_ground_has_exact_labels() -> None:
    options = SimpleNamespace(rooms=4, items=3, noise=0)
    task = tasks_of("train", 8, seed=1, orders=4, idle_share=0.0, kinds=["plain"], version=version_of(4, 3, 0))[3]
    world = world_of(task.task_id, 4, 3, 0)
    best, state = [], world.begin
    while not state.over:
        best.append(solve(world).best(state)[0])
        state = world.act(state, best[-1])[0]
    actions = ["wait", *best[:-1], "nonsense", best[-1]]
    steps = pa.table({"episode_id": ["a"] * len(actions), "action": actions, "score": pa.array([0.0] * len(actions), pa.float32())})
    source, [labels] = step_labels(SimpleNamespace(name="proving-ground", options=options), Path("."), [{"episode_id": "a", "task_id": task.task_id}], steps)
    assert source == "exact" and labels is not None and labels.tolist() == [0, *[1] * (len(best) - 1), 0, 1]


def test_a_graded_score_labels_the_steps_that_changed_it() -> None:
    steps = pa.table({"episode_id": ["a"] * 4, "action": ["x"] * 4, "score": pa.array([0.0, 0.3, 0.3, 0.1], pa.float32())})
    settings = SimpleNamespace(name="scienceworld", options=None)
    source, [labels] = step_labels(settings, Path("."), [{"episode_id": "a"}], steps)
    assert source == "score" and labels is not None and labels.tolist() == [0, 1, 0, -1]
    ends = steps.set_column(2, "score", pa.array([0.0, 0.0, 0.0, 1.0], pa.float32()))
    assert step_labels(settings, Path("."), [{"episode_id": "a"}], ends) == (None, [None])  # the outcome alone says nothing of steps


def searched(game: CompiledGame, limit: int) -> int | None:
    """Fewest commands to the goal by trying them all, None beyond `limit`."""

    def key(one: Any) -> Any:
        return one._place, one._held, tuple(one._opened), tuple(map(tuple, one._inside)), tuple(sorted((k, tuple(sorted(v))) for k, v in one._state.items()))

    waiting, seen = deque([(game, 0)]), {key(game)}
    while waiting:
        one, depth = waiting.popleft()
        if one.won:
            return depth
        if depth == limit:
            continue
        for command in one.admissible:
            if command.split()[0] in ("examine", "look", "inventory", "help", "close", "slice"):
                continue
            after = _copy(one)
            after.step(command)
            if key(after) not in seen:
                seen.add(key(after))
                waiting.append((after, depth + 1))
    return None


def _copy(game: CompiledGame) -> Any:
    other: Any = CompiledGame(game.world)
    for name in ("_place", "_here", "_held"):
        setattr(other, name, getattr(game, name))
    for name in ("_opened", "_inside", "_at", "_taken", "_state"):
        setattr(other, name, copy.deepcopy(getattr(game, name)))
    return other


def test_the_shortest_plan_is_what_a_search_finds_on_the_oracle_s_way_and_beside_it() -> None:
    rng, kinds, wrong = np.random.default_rng(0), set[str](), []
    for game in generate_games("train", 18, 1, 4):
        env, oracle = AlfworldEnv({game.task_id: game}, "compiled"), Oracle(game)
        turn = env.reset(game_task(game, "train"))
        oracle.reset(game_task(game, "train"), turn)
        begin, taken = plan_length(env._game), 0  # type: ignore[arg-type]
        while not turn.done and taken < 30:
            play: Any = env._game
            beside = _copy(play)
            beside.step(str(rng.choice(play.admissible)))
            for state in (play, beside):
                length = plan_length(state)
                assert length is not None
                if length <= 2 and not state.won:
                    kinds.add(game.task_type)
                    wrong += [(game.task_id, length)] if searched(state, 2) != length else []
            turn = env.step(oracle.act(turn)[1])
            taken += 1
        assert turn.solved and begin is not None and begin <= taken
    assert not wrong and len(kinds) >= 5
