"""Which tokens carry loss: exactly those that the policy wrote, end-of-turn included, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.episodes.files import table_of
from ratchet.episodes.template import Template
from ratchet.learners.batches import OBSERVATION, PROMPT, REPLY, micro_batch, pack, sequences_of
from tests.models import tiny

TURNS = [("You see a cabinet 3. Your task is: up", "think\n> go to cabinet 3"), ("A drawer 1", "> up"), ("Nothing happens.", "> wait")]


def steps(template: Template, name: str = "e", turns=TURNS, sampled: bool = True) -> list[dict]:
    out = []
    for t, (observation, reply) in enumerate(turns):
        ids = template.replies_ids([reply])[0]
        out.append({"episode_id": name, "t": t, "prompt_ids": template.observation_ids(observation, t == 0), "reply_ids": ids,
                    "logprobs": [-0.1 * (t + 1) - 0.001 * k for k in range(len(ids))] if sampled else []})
    return out


@pytest.mark.parametrize("template", [tiny.template(), tiny.text_template()], ids=["special tokens", "text markers"])
def test_loss_is_on_the_replies_with_their_end_and_on_nothing_else(template: Template) -> None:
    [one] = sequences_of(table_of("steps", steps(template)))
    micro = micro_batch([one], frozenset({REPLY}))
    wanted = [token for _, reply in TURNS for token in template.replies_ids([reply])[0]]
    assert micro.target.tolist() == wanted and wanted.count(template.end) == 3
    decoded = template.tokenizer._tokenizer.decode(wanted, skip_special_tokens=False)
    end = template.tokenizer._tokenizer.decode([template.end], skip_special_tokens=False)
    assert decoded == "".join(reply + end for _, reply in TURNS)
    assert (micro.ids[0, micro.before + 1] == micro.target).all()  # the position before predicts it
    # what is read: the head and first observation apart, later ones (with their markers) are the observation term's
    observed = micro_batch([one], frozenset({OBSERVATION})).target.tolist()
    assert observed == [token for text, _ in TURNS[1:] for token in template.observation_ids(text, False)]
    assert (one.role == PROMPT).sum() == len(template.observation_ids(TURNS[0][0], True))
    assert one.n_reply == len(wanted) and one.n_observation == len(observed)


def test_ids_log_probs_and_advantages_of_a_step_lie_on_its_own_reply() -> None:
    template = tiny.template()
    rows = steps(template)
    [one] = sequences_of(table_of("steps", rows), {"e": np.array([1.0, -2.0, 3.0])})
    assert one.ids.tolist() == [token for row in rows for token in row["prompt_ids"] + row["reply_ids"]]
    micro = micro_batch([one], frozenset({REPLY}))
    sizes = [len(row["reply_ids"]) for row in rows]
    assert micro.advantage.tolist() == np.repeat([1.0, -2.0, 3.0], sizes).tolist()  # also where an observation follows at the end
    assert micro.step.tolist() == np.repeat([0, 1, 2], sizes).tolist()
    np.testing.assert_allclose(micro.old_logprob, [p for row in rows for p in row["logprobs"]], rtol=1e-6)
    assert not one.old_logprobs[one.role != REPLY].any()
    # a step's tokens end with its reply: its history is everything before, its observation last
    for t, row in enumerate(rows):
        mine = one.ids[one.step == t].tolist()
        assert mine == row["prompt_ids"] + row["reply_ids"]
        first = int(np.flatnonzero((one.step == t) & (one.role == REPLY))[0])
        assert one.ids[:first].tolist()[-len(row["prompt_ids"]) :] == row["prompt_ids"]


def test_episodes_keep_their_own_steps_in_any_order_and_selection() -> None:
    template = tiny.template()
    table = table_of("steps", [*steps(template, "a"), *steps(template, "b", TURNS[:1]), *steps(template, "c", TURNS[:2], sampled=False)])
    advantages = {"a": np.ones(3), "b": np.array([5.0]), "c": np.array([7.0, 8.0])}
    found = sequences_of(table, advantages, ["c", "missing", "a"])
    assert [one.episode_id for one in found] == ["c", "a"]
    assert found[0].advantages.tolist() == [7.0, 8.0] and not found[0].old_logprobs.any()
    [sliced] = sequences_of(table.slice(3, 1))  # a slice keeps the offsets of the whole
    assert sliced.ids.tolist() == sequences_of(table)[1].ids.tolist()
    micro = micro_batch(found, frozenset({REPLY}))
    assert micro.step.max() == 4 and len(micro.step.unique()) == 5  # steps of two episodes never share an index
    assert micro.episode_tokens.unique().tolist() == sorted({float(one.n_reply) for one in found})


def test_a_reply_of_no_tokens_and_an_episode_that_begins_with_a_reply_are_taken() -> None:
    rows = [{"episode_id": "e", "t": 0, "prompt_ids": [], "reply_ids": [9, 8], "logprobs": [-1.0, -2.0]},
            {"episode_id": "e", "t": 1, "prompt_ids": [5], "reply_ids": [], "logprobs": []}]
    [one] = sequences_of(table_of("steps", rows))
    assert micro_batch([one], frozenset({REPLY})).target.tolist() == [8]  # nothing predicts a first token


def test_packs_hold_the_budget_and_every_sequence_once() -> None:
    sequences = tiny.sequences(20)
    for budget in (1, 30, 64, 10**6):
        groups = list(pack(sequences, budget))
        assert sorted(one.episode_id for group in groups for one in group) == sorted(one.episode_id for one in sequences)
        assert all(len(group) == 1 or sum(len(one.ids) for one in group) <= budget for group in groups)
    assert [[o.episode_id for o in g] for g in pack(sequences, 64)] == [[o.episode_id for o in g] for g in pack(sequences[::-1], 64)]
