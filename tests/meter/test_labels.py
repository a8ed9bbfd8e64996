"""What a meter learns: labels, splits, the answer's line and its reward."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ratchet.errors import RatchetError
from ratchet.meter.answer import Answer, Grammar, parse_answer, reserve, write_answer
from ratchet.meter.labels import Labelled, balanced, split, values_of, verbosity
from ratchet.meter.reward import prediction_reward
from tests.episodes import chat_templates as chat
from tests.models import tiny

FOLDER = Path(__file__).parents[1] / "vectors"
TTG = json.loads((FOLDER / "ttg_labels.json").read_text())["cases"]
REWARD = json.loads((FOLDER / "meter_reward.json").read_text())["cases"]
SHARES = {"sft": 0.5, "rl": 0.25, "calibration": 0.25}


@pytest.mark.parametrize("case", TTG)
def test_token_to_go_equals_the_vectors(case: dict) -> None:
    found = values_of("ttg", np.array(case["n"]), solved=case["success"], score=float(case["success"]))
    assert [{"completable": value is not None, "remaining_tokens": value} for value in found] == case["labels"]
    assert [json.loads(write_answer(value)) for value in found] == case["labels"]


@pytest.mark.parametrize("case", REWARD)
def test_the_prediction_reward_equals_the_vectors(case: dict) -> None:
    assert prediction_reward(case["answer"], case["completable"], case["remaining_tokens"]) == pytest.approx(case["reward"])


def test_other_targets_count_steps_or_what_of_the_score_is_missing() -> None:
    assert values_of("steps", np.array([7, 9]), solved=True, score=1.0) == [2, 1]
    assert values_of("steps", np.array([7, 9]), solved=False, score=0.0) == [None, None]
    assert values_of("score", np.array([7, 9]), solved=False, score=0.35) == [65, 65]


def test_only_the_line_itself_is_an_answer() -> None:
    for text in ("{} ", '{"completable": true, "remaining_tokens": 012}', '{"completable":true,"remaining_tokens":1}',
                 'yes {"completable": true, "remaining_tokens": 1}', '{"completable": true, "remaining_tokens": 1}\n{', "9" * 40):
        assert parse_answer(text) is None
    assert parse_answer(' {"completable": true, "remaining_tokens": 0}\n') == Answer(True, 0)
    assert parse_answer(write_answer(None)) == Answer(False, None)


def test_the_answer_is_a_few_tokens_of_ours_and_its_line_in_any_tokenizer() -> None:
    template = tiny.template()
    texts = ["You see a cabinet 3. true, null", "{} 412", "> go to cabinet 5"]
    before = [template.text_ids(text) for text in texts]
    from ratchet.episodes.template import load_template

    grown = load_template(tiny.tokenizer_folder())
    assert reserve(grown.tokenizer) == len(template.tokenizer) + 6
    assert [grown.text_ids(text) for text in texts] == before  # no text has other tokens than before
    grammar = Grammar.of(grown)
    assert len(grammar.ids(412)) == 8 and len(grammar.ids(None)) == 6
    for one, words in ((grammar, grown), (Grammar.of(load_template(tiny.chat_folder(chat.QWEN3))), load_template(tiny.chat_folder(chat.QWEN3)))):
        for value in (None, 0, 7, 412, 90210):
            [text] = words.decode_replies([one.ids(value)])
            assert text == write_answer(value)


def episode(number: int, solved: bool, policy: str = "actor", tokens: tuple[int, ...] = (5, 5)) -> Labelled:
    n = np.array(tokens)
    return Labelled(f"e{number}", f"t{number // 2}", policy, solved, False, float(solved), n.astype(float), n, values_of("ttg", n, solved=solved, score=0.0))


def test_splits_are_by_task_and_hold_both_classes() -> None:
    pool = [episode(number, number % 8 == 0) for number in range(60)]
    found = split(pool, SHARES, seed=1)
    tasks = [{one.task_id for one in some} for some in found.values()]
    assert sum(map(len, tasks)) == len(set.union(*tasks)) == 30 and sum(map(len, found.values())) == 60
    assert all({one.solved for one in some} == {True, False} for some in found.values())
    assert len(found["sft"]) > len(found["rl"]) and split(pool, SHARES, seed=1) == found and split(pool, SHARES, seed=2) != found


@pytest.mark.parametrize(("solved", "said"), [(True, "no failure \\(6 of 6"), (False, "no success \\(0 of 6")])
def test_a_pool_of_one_class_is_refused_with_the_counts(solved: bool, said: str) -> None:
    with pytest.raises(RatchetError, match=said):
        split([episode(number, solved) for number in range(6)], SHARES, seed=1)


def test_balancing_shows_both_answers_equally_often() -> None:
    flags = [True] * 3 + [False] * 17
    drawn = balanced(flags, seed=3)
    assert len(drawn) == 34 and sum(flags[index] for index in drawn) == 17 and set(drawn.tolist()) == set(range(20))


def test_a_verbose_policy_counts_in_its_own_mean() -> None:
    factors = verbosity({"terse": [np.array([10, 10])], "verbose": [np.array([40, 20])]})
    assert factors["terse"] * 10 == pytest.approx(20) and factors["verbose"] * 30 == pytest.approx(20)
