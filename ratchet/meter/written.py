"""Answers that are written: the verdict and the digits by the grammar, all questions of a batch in parallel.

Of the answer only the verdict and the digits are open, so the frame is read together with what is before it, and an answer costs one
step a digit. A share of the questions is written freely, token by token over the whole vocabulary: there it is measured how often an
answer does not parse.

Legend: Q questions · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ratchet.episodes.template import Template
from ratchet.meter.answer import MOST_DIGITS, Grammar, parse_answer
from ratchet.meter.passes import BUDGET, TOGETHER, Continuation, Pass, Trunk, packed
from ratchet.models.parts import head

MOST_FREE = 64  # tokens of an answer that is written freely


@dataclass
class Answers:
    """Of Q questions, in the order of trunks and their asks."""

    logit: np.ndarray  # float64 [Q]: log-odds of `true` against `false`
    remaining: np.ndarray  # float64 [Q]; NaN where it was not read
    completable: np.ndarray  # bool [Q]
    parsed: np.ndarray  # bool [Q]
    free: np.ndarray  # bool [Q]: written freely

    @classmethod
    def empty(cls, count: int) -> Answers:
        """As where nothing was asked: C, not parsed."""
        flags = np.zeros(count, bool)
        return cls(np.zeros(count), np.full(count, np.nan), flags.copy(), flags.copy(), flags.copy())

    def put(self, where: np.ndarray, part: Answers) -> None:
        for name in ("logit", "remaining", "completable", "parsed", "free"):
            getattr(self, name)[where] = getattr(part, name)


def places_of(trunks: Sequence[Trunk]) -> list[np.ndarray]:
    """Of each trunk the places of its questions among all of them."""
    ends = np.cumsum([len(one.asks) for one in trunks])
    return [np.arange(end - len(one.asks), end) for one, end in zip(trunks, ends, strict=True)]


@torch.inference_mode()
def ask_written(
    model: Any,
    template: Template,
    grammar: Grammar,
    trunks: Sequence[Trunk],
    *,
    free: np.ndarray | None = None,
    all_remaining: bool = False,
    budget: int = BUDGET,
) -> Answers:
    """All answers, greedily. `free` [Q] marks those that are written freely; `all_remaining` reads the number also where the verdict is
    `false`, as if it were `true` (for soft costs)."""
    places = places_of(trunks)
    found = Answers.empty(sum(map(len, places)))
    opened = (*grammar.question, *grammar.opening)
    waiting: list[tuple[np.ndarray, Pass]] = []
    size = 0
    groups = packed(trunks, budget, len(opened))
    for number, group in enumerate(groups):
        one = Pass.of(model, [trunks[index] for index in group], opened)
        waiting.append((np.concatenate([places[index] for index in group]), one))
        size += sum(one.lengths)
        if size >= TOGETHER or number + 1 == len(groups):
            where = np.concatenate([some for some, _ in waiting])
            mine = np.zeros(len(where), bool) if free is None else free[where]
            found.put(where, _write(model, template, grammar, [one for _, one in waiting], mine, all_remaining))
            waiting, size = [], 0
    return found


def _write(model: Any, template: Template, grammar: Grammar, passes: Sequence[Pass], free: np.ndarray, all_remaining: bool) -> Answers:
    ends = [torch.from_numpy(one.ends).to(one.hidden.device) for one in passes]
    last = torch.cat([one.hidden[end] for one, end in zip(passes, ends, strict=True)])
    verdicts = head(model)(last).float()[:, [grammar.true[0], grammar.false[0]]]
    logit = (verdicts[:, 0] - verdicts[:, 1]).double().cpu().numpy()
    found = Answers.empty(len(logit))
    found.logit, found.completable, found.parsed, found.free = logit, logit >= 0, np.ones(len(logit), bool), free
    read = np.ones(len(logit), bool) if all_remaining else found.completable
    rows = np.flatnonzero(read & (~free | all_remaining))
    needed = len(grammar.true) + len(grammar.middle) + MOST_DIGITS
    if len(rows) or free.any():
        on = Continuation(model, passes, max(needed, MOST_FREE if free.any() else 0))
        held = on.used.copy()
        if len(rows):
            found.remaining[rows] = _digits(on, grammar, rows)
            on.rewind(rows, held[rows])
        if free.any():
            behind = torch.cat([one.hidden[end - len(grammar.opening)] for one, end in zip(passes, ends, strict=True)])
            _freely(model, on, template, grammar, behind, np.flatnonzero(free), found)
    return found


def _digits(on: Continuation, grammar: Grammar, rows: np.ndarray) -> np.ndarray:
    """v̂ float64 [b] of the branches `rows` by the grammar: a digit, then digits until the closing brace; no number begins with 0 but 0."""
    values, running = np.zeros(len(rows)), np.arange(len(rows))
    logits = on.read(rows, np.tile([*grammar.true, *grammar.middle], (len(rows), 1)))
    known = torch.tensor([*grammar.digits, grammar.close[0]], device=logits.device)
    for place in range(MOST_DIGITS):
        choices = logits[:, known]
        if place == 0:
            choices = choices[:, :10]
        chosen = choices.argmax(-1).cpu().numpy()
        goes_on = chosen < 10
        running, digit = running[goes_on], chosen[goes_on]
        values[running] = values[running] * 10 + digit
        still = values[running] > 0  # behind a leading 0 only the brace can follow
        running, digit = running[still], digit[still]
        if not len(running) or place + 1 == MOST_DIGITS:
            break
        logits = on.read(rows[running], np.asarray(grammar.digits)[digit][:, None])
    return values


def _freely(
    model: Any, on: Continuation, template: Template, grammar: Grammar, hidden: torch.Tensor, rows: np.ndarray, found: Answers
) -> None:
    """Writes behind the question until the end of the turn and reads the text as anybody would. A number that was read by the grammar stays
    where the text has none."""
    on.rewind(rows, on.used[rows] - len(grammar.opening))
    written: list[list[int]] = [[] for _ in rows]
    running = np.arange(len(rows))
    logits = head(model)(hidden[torch.from_numpy(rows).to(hidden.device)]).float()
    for place in range(MOST_FREE):
        chosen = logits.argmax(-1).cpu().numpy()
        for index, token in zip(running, chosen.tolist(), strict=True):
            written[index].append(token)
        goes_on = ~np.isin(chosen, template.ends)
        running, chosen = running[goes_on], chosen[goes_on]
        if not len(running) or place + 1 == MOST_FREE:
            break
        logits = on.read(rows[running], chosen[:, None].astype(np.int64))
    for row, text in zip(rows, template.decode_replies(written), strict=True):
        answer = parse_answer(text)
        found.parsed[row] = answer is not None
        found.completable[row] = answer is not None and answer.completable
        if answer is not None and answer.remaining is not None:
            found.remaining[row] = answer.remaining
