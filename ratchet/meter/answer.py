"""A meter's answer: one strict JSON line, and how it is cut into tokens (methods §3).

`{"completable": true, "remaining_tokens": 412}` or `{"completable": false, "remaining_tokens": null}`; keys, order and blanks are
fixed, so all but the verdict and the digits is known before it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ratchet.episodes.template import SPECIAL_TOKENS, Template
from ratchet.errors import RatchetError

OPEN, TRUE, FALSE, MIDDLE, NULL, CLOSE = '{"completable": ', "true", "false", ', "remaining_tokens": ', "null", "}"
QUESTION = "<meter>"
RESERVED = (QUESTION, OPEN, TRUE, FALSE, MIDDLE, NULL)
"""Tokens that a meter on one of our own tokenizers has of its own. They are special tokens: in an observation nothing is ever read as one,
so every text has the same tokens as before. Digits and the closing brace are single bytes, which every such tokenizer has."""
ASKED = (
    "Can the task still be completed from here, and how many tokens will the agent still write until it is? "
    'Answer with one line of JSON: {"completable": true, "remaining_tokens": N} or {"completable": false, "remaining_tokens": null}.'
)
MOST_DIGITS = 7
_LINE = re.compile(r'\{"completable": (?:true, "remaining_tokens": (0|[1-9][0-9]*)|(false), "remaining_tokens": null)\}')


@dataclass(frozen=True)
class Answer:
    """`remaining` is None where it is not completable."""

    completable: bool
    remaining: int | None


def parse_answer(text: str) -> Answer | None:
    """The answer in `text`, which has to be the JSON line and nothing else (outer blanks excepted); None where it does not parse."""
    found = _LINE.fullmatch(text.strip())
    if found is None or (found[1] is not None and len(found[1]) > 12):
        return None
    return Answer(False, None) if found[2] else Answer(True, int(found[1]))


def write_answer(remaining: int | None) -> str:
    """The line for a label."""
    if remaining is None:
        return f"{OPEN}{FALSE}{MIDDLE}{NULL}{CLOSE}"
    return f"{OPEN}{TRUE}{MIDDLE}{remaining}{CLOSE}"


@dataclass(frozen=True)
class Grammar:
    """Question and answer as tokens. `opening` ends where the verdict is decided, between its first tokens `true[0]` and `false[0]`;
    behind `true` and `middle` come digits and `close[0]`."""

    question: tuple[int, ...]
    opening: tuple[int, ...]
    true: tuple[int, ...]
    false: tuple[int, ...]
    middle: tuple[int, ...]
    null: tuple[int, ...]
    digits: tuple[int, ...]  # of 0 … 9
    close: tuple[int, ...]
    end: int
    behind: int  # tokens of a turn's prompt behind the point from which the question goes on

    @classmethod
    def of(cls, template: Template) -> Grammar:
        """Raises RatchetError for a tokenizer in which verdicts begin alike or digits are not single tokens."""
        vocabulary = template.tokenizer.get_vocab()
        if all(mark in vocabulary for mark in RESERVED):
            parts = {mark: (vocabulary[mark],) for mark in RESERVED}
            question = parts[QUESTION]
        else:
            parts = {mark: tuple(template.text_ids(mark)) for mark in RESERVED[1:]}
            question = tuple(_asked(template))
        digits = [template.text_ids(str(number)) for number in range(10)]
        close = tuple(template.text_ids(CLOSE))
        first = {parts[TRUE][0], parts[FALSE][0]}
        if len(first) < 2 or any(len(one) != 1 for one in digits) or (close[0],) in map(tuple, digits):
            raise RatchetError(
                f"the tokenizer {template.tokenizer_id} has no single token for each digit, or `true` and `false` begin alike, so a meter's "
                "answer cannot be decoded by its grammar; set fit_meter.form to head, or take another fit_meter.base"
            )
        return cls(
            question, parts[OPEN], parts[TRUE], parts[FALSE], parts[MIDDLE], parts[NULL], tuple(one[0] for one in digits), close,
            template.end, len(template.act_ids),
        )  # fmt: skip

    def ids(self, remaining: int | None) -> list[int]:
        """The answer's tokens with the end-of-turn."""
        if remaining is None:
            return [*self.opening, *self.false, *self.middle, *self.null, *self.close, self.end]
        digits = [self.digits[int(digit)] for digit in str(remaining)]
        return [*self.opening, *self.true, *self.middle, *digits, *self.close, self.end]


def _asked(template: Template) -> list[int]:
    """The question for a tokenizer of somebody else's, in the same turn behind the observation."""
    if template.act_ids:
        return [*template.text_ids(f"\n\n{ASKED}{template.act_text}"), *template.act_ids]
    return template.text_ids(f"{ASKED}\n")


def reserve(tokenizer: Any) -> int:
    """Adds the reserved tokens to one of our own tokenizers (in place) and returns how many there are now; others are left as they are."""
    from tokenizers import AddedToken

    if all(mark in tokenizer.get_vocab() for mark in SPECIAL_TOKENS.values()):
        tokenizer.add_special_tokens(
            {"additional_special_tokens": [AddedToken(mark, special=True, normalized=False) for mark in RESERVED]}
        )
    return len(tokenizer)
