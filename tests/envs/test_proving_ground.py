"""The proving ground: its rules, its exact values, its players, and that it is quick."""

from __future__ import annotations

import time
from collections import Counter, deque
from pathlib import Path

import pytest

from ratchet.envs.base import Task, Turn
from ratchet.envs.proving_ground import DO_NOTHING, IDLE, KINDS, Clerk, ProvingGroundEnv, Skilled, State, Verbose, World, solve, world_of
from ratchet.envs.proving_ground.benchmark import ProvingGround
from ratchet.envs.proving_ground.generate import tasks_of
from ratchet.envs.proving_ground.rules import FRAGILE, NOISE, PLAIN, SOLD, WORDS, Item, Order
from ratchet.errors import RatchetError
from ratchet.policies.do_nothing import do_nothing
from ratchet.policies.scripted import Player

SHAPE = {"rooms": 5, "items": 4, "noise": 2}


def tasks(count: int, idle_share: float = 0.25, split: str = "train", **shape: int) -> list[Task]:
    version = ProvingGroundEnv(**{**SHAPE, **shape}).version
    return tasks_of(split, count, seed=1, orders=4, idle_share=idle_share, kinds=list(KINDS), version=version)


def played(task: Task, player: Player, limit: int = 40, **shape: int) -> tuple[Turn, list[str]]:
    environment = ProvingGroundEnv(**{**SHAPE, **shape})
    turn, actions = environment.reset(task), []
    player.reset(task, turn)
    while not turn.done and len(actions) < limit:
        actions.append(player.act(turn)[1])
        turn = environment.step(actions[-1])
    return turn, actions


def house(*orders: Order, states: tuple[str, str] = (PLAIN, FRAGILE)) -> World:
    """Three rooms; a box in the attic, a cup in the barn; it begins in the den."""
    items = (Item("box", 0, states[0]), Item("cup", 1, states[1]))
    return World("house", ("attic", "barn", "den"), items, orders or (Order(0, 2),), (0, 1), 2, 0)


def after(world: World, *actions: str, start: State | None = None) -> State:
    state = start or world.begin
    for action in actions:
        state, _, valid = world.act(state, action)
        assert valid, action
    return state


def test_the_expert_solves_every_kind_of_task_in_the_fewest_steps() -> None:
    for task in tasks(80):
        world = world_of(task.task_id, **SHAPE)
        turn, actions = played(task, Clerk())
        assert turn.solved and turn.score == turn.reward == 1.0
        assert len(actions) == solve(world).steps(world.begin), task.task_id


def test_doing_nothing_solves_exactly_the_idle_tasks() -> None:
    assert ProvingGround.null_action == DO_NOTHING
    nothing = do_nothing(ProvingGround.null_action, "plain")
    for task in tasks(40):
        environment = ProvingGroundEnv()
        turn = environment.reset(task)
        nothing.begin(0, task, turn, "x", 1)
        (reply,) = nothing.act([0], [turn])
        assert reply is not None
        end = environment.step(reply.action)
        assert end.done and end.solved == (task.stratum == IDLE), task


@pytest.mark.parametrize(
    "mistake",
    [
        ("go attic", "take box", "send box"),  # from the wrong room
        ("go barn", "take cup", "wrap cup", "go den", "send cup"),  # nobody ordered it
    ],
)
def test_what_was_sent_wrongly_is_lost_for_good_and_nothing_says_so(mistake: tuple[str, ...]) -> None:
    world = house()
    right = after(world, "go attic", "take box", "go den")
    state = after(world, *mistake[:-1])
    lost, said, _ = world.act(state, mistake[-1])
    assert said == world.act(right, "send box")[1].replace("box", mistake[-1].split()[1])
    assert lost.spoiled and solve(world).steps(lost) is None and solve(world).value(lost) == 0
    assert not world.solved(after(world, *([] if lost.sent & 1 else ["go attic", "take box", "go den", "send box"]), DO_NOTHING, start=lost))


def test_a_fragile_item_has_to_be_wrapped_and_a_sold_one_left_alone() -> None:
    world = house(Order(1, 2))
    way = ("go barn", "take cup", "go den")
    assert after(world, *way, "send cup").spoiled and not after(world, *way, "wrap cup", "send cup").spoiled
    sold = house(Order(0, 2), states=(SOLD, PLAIN))
    assert sold.solved(after(sold, DO_NOTHING)) and after(sold, "go attic", "take box", "go den", "send box").spoiled


def test_an_action_is_a_step_towards_success_a_detour_or_a_mistake() -> None:
    world = house()
    exact, begin = solve(world), world.begin
    assert exact.steps(begin) == 5  # go, take, go, send, finish
    assert exact.best(begin) == ["go attic"]
    qualities = {action: exact.quality(begin, action) for action in world.admissible(begin)}
    assert {action: one.sign for action, one in qualities.items()} == {"go attic": 1, "go barn": 0, "wait": 0, DO_NOTHING: -1}
    assert exact.quality(begin, "send box").sign == exact.quality(begin, "anything").sign == 0, "what is not admissible does nothing"
    assert qualities["go attic"].difference == pytest.approx(0.95**4 - 0.95**5)
    assert qualities[DO_NOTHING].difference == -(0.95**5)
    taken = after(world, "go attic", "take box")
    assert exact.quality(taken, "wrap box").sign == 0 and world.act(taken, "wrap box")[1] == "nothing happens ."
    assert exact.quality(taken, "return box").difference == pytest.approx(0.95**4 - 0.95**3), "it can be taken again"
    done = after(world, "go attic", "take box", "go den", "send box")
    assert exact.quality(done, DO_NOTHING).sign == 1 and exact.value(after(world, DO_NOTHING, start=done)) == 1.0


def test_with_a_budget_what_can_no_longer_be_done_is_worth_nothing() -> None:
    world = house()
    exact = solve(world)
    assert exact.value(world.begin, left=5) > 0 == exact.value(world.begin, left=4)
    assert exact.quality(world.begin, "wait", left=5).sign == -1 and exact.quality(world.begin, "wait", left=6).sign == 0


def test_the_solution_agrees_with_a_search_through_clones_of_the_environment() -> None:
    for task in tasks(12, rooms=3, items=2):
        world, found = world_of(task.task_id, 3, 2, 2), None
        environment = ProvingGroundEnv(3, 2, 2)
        environment.reset(task)
        waiting, seen = deque([(environment, 0)]), set()
        while waiting and found is None:
            one, depth = waiting.popleft()
            for action in one._last.admissible:
                copy = one.clone()
                turn = copy.step(action)
                if turn.solved:
                    found = depth + 1
                elif not turn.done and copy.state not in seen:
                    seen.add(copy.state)
                    waiting.append((copy, depth + 1))
        assert found == solve(world).steps(world.begin), task.task_id


def test_the_value_of_a_policy_is_the_sum_over_all_its_episodes() -> None:
    world = house(Order(0, 1))

    def policy(state: State) -> dict[str, float]:
        actions = world.admissible(state)
        return {action: 1 / len(actions) for action in actions}

    def enumerated(state: State, left: int, gamma: float) -> float:
        if state.over or not left:
            return float(world.solved(state))
        return gamma * sum(p * enumerated(world.act(state, action)[0], left - 1, gamma) for action, p in policy(state).items())

    for horizon, gamma in ((6, 1.0), (6, 0.9)):
        value = solve(world).policy_value(policy, horizon=horizon, gamma=gamma)
        assert 0 < value == pytest.approx(enumerated(world.begin, horizon, gamma), abs=1e-12)
    assert solve(world).policy_value(lambda state: {solve(world).best(state)[0]: 1.0} if solve(world).best(state) else {}, horizon=5) == 1.0


@pytest.mark.parametrize("share", [0.0, 0.25, 0.38, 1.0])
def test_the_share_of_idle_tasks_is_exact_in_any_first_part(share: float) -> None:
    found = [task.stratum for task in tasks(400, idle_share=share)]
    for count in (100, 250, 400):
        assert abs(found[:count].count(IDLE) - share * count) < 1
    kinds = Counter(found)
    del kinds[IDLE]
    assert not kinds or max(kinds.values()) - min(kinds.values()) <= 1


def test_seen_shares_the_houses_of_train_and_no_order() -> None:
    train, seen = tasks(40), tasks(40, split="seen")
    assert {task.cluster for task in train} == {task.cluster for task in seen} and not {task.task_id for task in train} & {task.task_id for task in seen}


def test_noise_changes_what_is_read_and_nothing_else() -> None:
    for one in tasks(8, noise=0):
        quiet, loud = ProvingGroundEnv(**{**SHAPE, "noise": 0}), ProvingGroundEnv(**{**SHAPE, "noise": 12})
        other = tasks(8, noise=12)[0]
        loud_task = Task(one.env, other.env_version, one.task_id, one.split, one.stratum, one.cluster)
        a, b = quiet.reset(one), loud.reset(loud_task)
        for action in (*a.admissible[:3], "take x", DO_NOTHING):
            assert sum(word in NOISE for word in b.observation.split()) == (0 if b.done else 12) and not set(a.observation.split()) & set(NOISE)
            a, b = quiet.step(action), loud.step(action)
            assert (a.admissible, a.solved, a.done, a.valid) == (b.admissible, b.solved, b.done, b.valid)


def test_the_clerk_recovers_from_what_can_be_undone() -> None:
    task = next(task for task in tasks(20) if task.stratum == "two")
    world, environment, clerk = world_of(task.task_id, **SHAPE), ProvingGroundEnv(), Clerk()
    turn = environment.reset(task)
    clerk.reset(task, turn)
    clerk.act(turn)
    wrong = next(item for at, item in enumerate(world.items) if at not in world.destination)
    script = [f"go {world.rooms[wrong.home]}", f"take {wrong.name}", "wait", f"go {next(r for r in world.rooms if r != world.rooms[wrong.home])}"]
    for action in script:
        turn = environment.step(action)
        answer = clerk.act(turn)[1]
    while not turn.done:
        turn = environment.step(answer)
        answer = "" if turn.done else clerk.act(turn)[1]
    assert turn.solved


def test_verbosity_adds_words_and_changes_no_action() -> None:
    task = tasks(3)[2]
    plain, loud = Clerk(), Verbose(Clerk(), 20)
    assert played(task, plain)[1] == played(task, loud)[1]
    environment = ProvingGroundEnv()
    turn = environment.reset(task)
    counts = []
    loud.reset(task, turn)
    for _ in range(200):
        counts.append(len(loud.act(turn)[0].split()) - len(Clerk_thought(task, turn)))
    assert 17 < sum(counts) / len(counts) < 23 and max(counts) > 35 and min(counts) < 5


def Clerk_thought(task: Task, turn: Turn) -> list[str]:
    clerk = Clerk()
    clerk.reset(task, turn)
    return clerk.act(turn)[0].split()


def test_skill_is_how_often_the_right_thing_is_done() -> None:
    chosen = tasks(60, idle_share=0.0)
    solved = [sum(played(task, Skilled(Clerk(), skill, 1, task.task_id))[0].solved for task in chosen) for skill in (0.0, 0.8, 1.0)]
    assert solved[0] < solved[1] < solved[2] == 60


def test_without_thoughts_the_expert_only_acts() -> None:
    task = tasks(1)[0]
    turn = ProvingGroundEnv().reset(task)
    for thoughts in (True, False):
        clerk = Clerk(thoughts)
        clerk.reset(task, turn)
        assert bool(clerk.act(turn)[0]) is thoughts


def test_every_word_is_one_token(tmp_path: Path) -> None:
    from ratchet.episodes.template import load_template
    from ratchet.episodes.tokenizer import train_tokenizer

    texts = []
    for task in tasks(60):
        environment, clerk = ProvingGroundEnv(), Verbose(Clerk(), 2)
        turn = environment.reset(task)
        clerk.reset(task, turn)
        while not turn.done:
            thought, action = clerk.act(turn)
            texts += [turn.observation, f"{thought}\n> {action}"]
            turn = environment.step(action)
    size = train_tokenizer(texts, 300, tmp_path, WORDS)
    backend = load_template(tmp_path).tokenizer._tokenizer
    for text in texts:
        assert len(backend.encode(text, add_special_tokens=False).ids) == len(text.split()), text
    assert len({*WORDS}) == len(WORDS) and size < 300 + 2 * len(WORDS)


def test_a_task_of_another_world_is_refused() -> None:
    task, environment = tasks(1)[0], ProvingGroundEnv(rooms=4)
    with pytest.raises(RatchetError, match="make it again"):
        environment.reset(task)
    with pytest.raises(RatchetError, match="no task of the proving ground"):
        world_of("two-1-0", **SHAPE)
    with pytest.raises(RatchetError, match="before reset"):
        ProvingGroundEnv().step("wait")


def test_a_scripted_policy_plays_a_thousand_episodes_a_second() -> None:
    chosen, began = tasks(400), time.process_time()
    for task in chosen:
        assert played(task, Clerk())[0].solved
    assert len(chosen) / (time.process_time() - began) > 1000
