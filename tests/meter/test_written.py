"""Answers over branches are those of one question a sequence, by transformers' own attention."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.meter import written
from ratchet.meter.answer import MOST_DIGITS, parse_answer
from ratchet.meter.base import make_base
from ratchet.meter.head import Head, ask_head
from ratchet.meter.passes import Ask, Trunk
from ratchet.meter.written import ask_written
from ratchet.models.build import load_model, save_model
from tests.models import tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ...]]:
    """(transformers' model, ours of the same weights, template, grammar)."""
    folder = tmp_path_factory.mktemp("meter")
    save_model(tiny.model(len(tiny.template().tokenizer)), tiny.tokenizer_folder(), folder / "base", {"stage": "test"})
    model, template, grammar, alike = make_base(folder / "base", folder / "words", "plain", 1)
    assert alike == [tiny.template().tokenizer_id] and template.tokenizer_id not in alike
    save_model(model, folder / "words", folder / "meter", {"stage": "test"})
    yield model, load_model(folder / "meter", light=True).eval(), template, grammar


def trunks() -> list[Trunk]:
    rng = np.random.default_rng(0)
    out = []
    for size, count in ((40, 3), (25, 2), (60, 4), (3, 1), (9, 0)):
        points = sorted(rng.choice(size, count, replace=False).tolist())
        out.append(Trunk(rng.integers(5, 250, size), tuple(Ask(point) for point in points)))
    guided = Trunk(rng.integers(5, 250, 20), tuple(Ask(19, tuple(rng.integers(5, 250, size).tolist())) for size in (4, 7)))
    return [*out, guided]


def separately(model: Any, template: Any, grammar: Any, prefix: list[int], is_free: bool) -> tuple[float, int, str]:
    """(log-odds of the verdict, the number by the grammar, what is written freely) for a history of its own, by an eager model."""

    @torch.no_grad()
    def logits(ids: list[int]) -> torch.Tensor:
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()

    asked = [*prefix, *grammar.question]
    opened = [*asked, *grammar.opening]
    verdict = logits(opened)
    on, digits = [*opened, *grammar.true, *grammar.middle], ""
    while len(digits) < MOST_DIGITS and digits != "0":
        choices = logits(on)[torch.tensor([*grammar.digits, *grammar.close])]
        digit = int((choices if digits else choices[:10]).argmax())
        if digit == 10:
            break
        digits += str(digit)
        on.append(grammar.digits[digit])
    free: list[int] = []
    while is_free and len(free) < written.MOST_FREE and (not free or free[-1] not in template.ends):
        free.append(int(logits([*asked, *free]).argmax()))
    return float(verdict[grammar.true[0]] - verdict[grammar.false[0]]), int(digits), template.decode_replies([free])[0]


def test_branch_answers_are_those_of_one_question_a_sequence(base: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model, ours, template, grammar = base
    monkeypatch.setattr(written, "MOST_FREE", 9)
    eager = copy.deepcopy(model).eval()
    eager.set_attn_implementation("eager")
    asked = trunks()
    count = sum(len(one.asks) for one in asked)
    free = np.arange(count) % 3 == 0
    found = ask_written(ours, template, grammar, asked, free=free, all_remaining=True, budget=90)
    hard = ask_written(model, template, grammar, asked)
    place = 0
    for one in asked:
        for ask in one.asks:
            logit, remaining, text = separately(eager, template, grammar, [*one.ids[: ask.at + 1].tolist(), *ask.extra], bool(free[place]))
            assert found.logit[place] == pytest.approx(logit, abs=1e-3) and hard.logit[place] == pytest.approx(logit, abs=1e-3)
            assert hard.completable[place] == (logit >= 0) and np.isnan(hard.remaining[place]) == (logit < 0)
            answer = parse_answer(text)
            if free[place]:
                assert found.parsed[place] == (answer is not None)
                written_number = answer.remaining if answer is not None else None
                assert found.remaining[place] == (remaining if written_number is None else written_number), "soft costs need a number everywhere"
            else:
                assert found.parsed[place] and found.remaining[place] == remaining
                assert logit < 0 or hard.remaining[place] == remaining
            place += 1
    assert place == count and (hard.completable.any() or (hard.logit < 0).all())


def test_a_head_reads_the_question_itself(base: tuple[Any, ...]) -> None:
    model, ours, _, grammar = base
    head = Head(32)
    with torch.no_grad():
        head.linear.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
        head.linear.bias[1] = 3.0
    found = ask_head(ours, head, grammar, trunks(), budget=90)
    one = trunks()[2]
    other = copy.deepcopy(model).eval()
    other.set_attn_implementation("eager")
    first = sum(len(trunk.asks) for trunk in trunks()[:2])
    for number, ask in enumerate(one.asks):
        ids = torch.tensor([[*one.ids[: ask.at + 1].tolist(), *grammar.question]])
        with torch.no_grad():
            logit, size = head(other.model(input_ids=ids, use_cache=False).last_hidden_state[0, -1:])
        assert found.logit[first + number] == pytest.approx(float(logit), abs=1e-3)
        assert found.remaining[first + number] == pytest.approx(float(size.expm1().clamp(min=0)), rel=1e-3, abs=1e-3)
    assert found.parsed.all()


def test_the_untrained_meter_computes_what_its_base_does(base: tuple[Any, ...], tmp_path: Path) -> None:
    """Six tokens more, and no other change: the log-probs of old tokens among old tokens are the base's."""
    model, _, _, _ = base
    old = tiny.model(len(tiny.template().tokenizer))
    ids = torch.arange(5, 30)[None]
    for one in (model, old):
        one.set_attn_implementation("eager")
    with torch.no_grad():
        new, was = (one(input_ids=ids, use_cache=False).logits[0] for one in (model, old))
    model.set_attn_implementation("ratchet")
    torch.testing.assert_close(new[:, : was.shape[1]], was)
