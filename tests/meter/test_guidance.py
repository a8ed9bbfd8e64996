"""Guidance: the cheapest candidate is played, copies and replays lead to the same, and steps are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.guiding import check_guide, meter_folder
from ratchet.envs.pool import EnvPool
from ratchet.envs.proving_ground.env import ProvingGroundEnv
from ratchet.envs.proving_ground.exact import solve
from ratchet.envs.proving_ground.generate import tasks_of, version_of, world_of
from ratchet.episodes.template import load_template
from ratchet.episodes.tokenizer import train_tokenizer
from ratchet.errors import RatchetError
from ratchet.meter.guidance import GuidedPolicy
from ratchet.meter.lookahead import Clones, Replays, lookahead_of
from ratchet.models.build import from_scratch, save_model
from ratchet.policies.language_model import ModelSpec
from ratchet.rollout.play import Job, play

SHAPE = (4, 3, 0)
TASKS = tasks_of("train", 3, seed=1, orders=4, idle_share=0.0, kinds=["plain"], version=version_of(*SHAPE))
FACTORY = "ratchet.envs.proving_ground.env:make"
ARGUMENTS = {"rooms": 4, "items": 3, "noise": 0}


def test_copies_and_replays_lead_to_the_same_and_count_their_steps() -> None:
    clones = Clones(lambda: ProvingGroundEnv(*SHAPE))
    with EnvPool(FACTORY, ARGUMENTS, 1, 30.0) as pool:
        replays = Replays(pool, 3)
        for row, task in enumerate(TASKS[:2]):
            turn = ProvingGroundEnv(*SHAPE).reset(task)
            for one in (clones, replays):
                one.begin(row, task, turn, f"e{row}")
        real = [ProvingGroundEnv(*SHAPE) for _ in range(2)]
        now = [env.reset(task).observation for env, task in zip(real, TASKS, strict=False)]
        for turns in range(3):
            actions = [[*solve(world_of(TASKS[0].task_id, *SHAPE)).best(clones._rows[0].env.state)[:1], "wait", "finish"], ["wait", "go den", "nonsense"]]
            tried = [one.tried([0, 1], now, actions) for one in (clones, replays)]
            seen = [[[(turn.observation, turn.done, turn.solved, turn.valid) for turn in some] for some in found] for found in tried]  # type: ignore[union-attr]
            assert seen[0] == seen[1] and len(seen[0][0]) == 3
            for one in (clones, replays):
                one.took(0, 0)
                one.took(1, turns % 2)
            now = [real[0].step(actions[0][0]).observation, real[1].step(actions[1][turns % 2]).observation]
        assert clones.steps["e0"].tried == replays.steps["e0"].tried == 9 and clones.steps["e0"].replayed == 0
        assert replays.steps["e0"].replayed == 3 * (0 + 1 + 2)
        replays._rows[1].observations[1] = "something else"
        with pytest.raises(RatchetError, match="reads otherwise at step 1"):
            replays.tried([1], now[1:], [["wait"]])
        with pytest.raises(RatchetError, match="reads otherwise in a copy of its environment"):
            clones.tried([1], ["something else"], [["wait"]])
    settings = SimpleNamespace(name="proving-ground", options=SimpleNamespace(model_dump=lambda: {**ARGUMENTS, "seed": 1}))
    with lookahead_of(settings, Path("."), "train", 4) as found:
        assert isinstance(found, Clones)


class Judge:
    """A meter that counts remaining tokens by what stands last in the history: actions that it is given are the cheaper, the longer."""

    limit, room, alike = 100.0, 10_000, frozenset[str]()

    def __init__(self, template: Any) -> None:
        self.template, self.alike = template, frozenset([template.tokenizer_id])
        self.grammar, self.asked = SimpleNamespace(behind=len(template.act_ids)), list[int]()

    def answers(self, trunks: Any) -> Any:
        values = [float(50 - len(ask.extra)) for one in trunks for ask in one.asks]
        self.asked += [len(ask.extra) for one in trunks for ask in one.asks]
        return SimpleNamespace(completable=np.ones(len(values), bool), remaining=np.array(values))


def test_the_cheapest_of_different_candidates_is_played(tmp_path: Path) -> None:
    env = ProvingGroundEnv(*SHAPE)
    texts = [env.reset(task).observation for task in TASKS] * 9 + ["> go den", "> wait", "> finish"] * 30
    train_tokenizer(texts, 300, tmp_path / "words")
    template = load_template(tmp_path / "words")
    model = from_scratch(layers=1, width=16, heads=2, kv_heads=1, mlp=32, vocab=len(template.tokenizer), context=400, seed=1, begin=1, end=template.end, pad=0)
    save_model(model, tmp_path / "words", tmp_path / "model", {"stage": "test", "action_format": "plain"})
    spec = ModelSpec(tmp_path / "model", "actor", "v", "plain", 2, 0.0, 400, 12)
    meter, ahead = Judge(template), Clones(lambda: ProvingGroundEnv(*SHAPE))
    policy = GuidedPolicy(spec, meter, ahead, candidates=3)  # type: ignore[arg-type]
    said = replace(policy.template.format, parse=lambda text: (text, True))  # so small a model writes no action
    ends = tuple(range(4, len(template.tokenizer), 5))  # nor ends a reply
    policy.template, policy.engine.ends = replace(policy.template, format=said, ends=ends), np.array(ends)
    drawn: list[list[Any]] = []
    true = policy._draw
    policy._draw = lambda *given: drawn.append(true(*given)) or drawn[-1]  # type: ignore[method-assign, func-returns-value]
    with EnvPool(FACTORY, ARGUMENTS, 1, 30.0) as pool:
        episodes, steps = play([Job(task, 1) for task in TASKS], policy, pool, max_steps=3, rows=2)
    assert episodes.num_rows == 3
    candidates = [some for turn in drawn for some in turn]
    assert all(len({one.action for one in some}) == len(some) for some in candidates) and max(map(len, candidates)) == 3
    assert sum(one.tried for one in ahead.steps.values()) == sum(map(len, candidates)) and len(ahead.steps) == 3
    chosen = set(steps["reply"].to_pylist())
    assert chosen <= {one.text for some in candidates for one in some} and meter.asked
    # what was read is the episode itself: the log-probs of the chosen replies are the model's own for that history
    from tests.models.tiny import reference_logprobs

    rows = [row for row in steps.to_pylist() if row["episode_id"] == episodes["episode_id"][0].as_py()]
    ids, at = [], []
    for row in rows:
        ids += row["prompt_ids"]
        at += range(len(ids), len(ids) + len(row["reply_ids"]))
        ids += row["reply_ids"]
    found = np.concatenate([row["logprobs"] for row in rows])
    np.testing.assert_allclose(found, reference_logprobs(model, ids).numpy()[np.array(at) - 1], atol=1e-4)


def test_a_guide_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RatchetError, match="there is no such guide"):
        check_guide("critic", 4)
    with pytest.raises(RatchetError, match="leaves nothing to choose"):
        check_guide("meter", 1)
    with pytest.raises(RatchetError, match="fitted no meter"):
        meter_folder(tmp_path, None)
