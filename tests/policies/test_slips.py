"""Slips: a wrong name now and then, marked, recoverable, and never imitated."""

from pathlib import Path

import numpy as np

from ratchet.envs.alfworld import AlfworldEnv, AlfworldExpert, game_task, generate_games
from ratchet.envs.base import Task, Turn
from ratchet.episodes.tokenizer import ENTITY
from ratchet.learners.batches import PROMPT, REPLY, Sequence, silence
from ratchet.policies.slips import SlippingPlayer


class Constant:
    """Says the same at every turn."""

    def reset(self, task: Task, turn: Turn) -> None: ...

    def act(self, turn: Turn) -> tuple[str, str]:
        return "need mug 1 ; mug 1 here", "take mug 1 from desk 1"


TURN = Turn("", ("take mug 1 from desk 1", "go to bed 1"))


def test_about_the_asked_share_of_steps_slips_and_each_names_another_thing_in_thought_and_action() -> None:
    player = SlippingPlayer(Constant(), 0.2, 1, "episode")
    said = [(player.act(TURN), player.slipped) for _ in range(2000)]
    slips = [text for text, slipped in said if slipped]
    assert 0.16 < len(slips) / len(said) < 0.24
    assert all(action != "take mug 1 from desk 1" for _, action in slips)
    assert all(text == Constant().act(TURN) for text, slipped in said if not slipped)
    swapped = [(thought, action) for thought, action in slips if "mug 1" not in action]
    assert swapped and all(" ".join(ENTITY.findall(action)[0]) in thought for thought, action in swapped)


def test_slips_depend_on_seed_and_episode_alone() -> None:
    def play(seed: int, episode: str) -> list[tuple[str, str]]:
        player = SlippingPlayer(Constant(), 0.5, seed, episode)
        return [player.act(TURN) for _ in range(20)]

    assert play(1, "a") == play(1, "a") != play(1, "b")


def test_the_expert_recovers_from_slips(tmp_path: Path) -> None:
    games = generate_games("train", 60, 3, 6)
    env = AlfworldEnv({game.task_id: game for game in games})
    solved = slips = 0
    for game in games:
        player = SlippingPlayer(AlfworldExpert(), 0.1, 1, game.task_id)
        turn = env.reset(game_task(game, "train"))
        player.reset(game_task(game, "train"), turn)
        for _ in range(40):
            turn = env.step(player.act(turn)[1])
            slips += player.slipped
            if turn.done:
                break
        solved += turn.solved
    assert slips > 20 and solved >= 57


def test_a_slipped_step_carries_no_loss() -> None:
    role = np.array([PROMPT, REPLY, REPLY, PROMPT, REPLY], np.int8)
    one = Sequence("e", np.arange(5), role, np.array([0, 0, 0, 1, 1]), np.zeros(5, np.float32), np.zeros(2, np.float32))
    silence(one, [0])
    assert one.role.tolist() == [PROMPT, PROMPT, PROMPT, PROMPT, REPLY] and one.n_reply == 1
