"""The pieces of a chat template, found by test renderings.

A template may do anything with the whole conversation: drop what a reply thought once another turn follows (Qwen3), number
turns, write the day. Only one that appends gives a sequence in which a further turn changes no earlier token. Here a template
is rendered with one, two and three turns; where each rendering continues the one before it, the texts between the contents
are the pieces. The ChatML family is rendered by pieces of our own where its template does more than append; every other such
template is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ratchet.errors import RatchetError

DAY = "01 Jan 2025"  # for templates that write the day: an episode must not depend on when it is played
OPEN, CLOSE = "<|im_start|>", "<|im_end|>"
_OBSERVATIONS = ("observation zero", "observation one", "observation two")
_REPLIES = ("<think>\nthought zero\n</think>\n\nreply zero", "<think>\nthought one\n</think>\n\nreply one")  # thoughts are what is dropped


@dataclass(frozen=True)
class Pieces:
    """What stands around contents, as text: before the first observation, before each later one, between an observation and the
    reply, and the one token behind a reply."""

    head: str
    mid: str
    act: str
    end: str


class _Unstable(Exception):
    """Why a template has no pieces."""


def chat_pieces(tokenizer: Any, instruction: str, where: str) -> Pieces:
    """The pieces of `tokenizer.chat_template` with `instruction` as system message, or at the head of the first observation where
    the template takes no system message. Raises RatchetError, naming `where`, for a template that only rewriting would follow."""
    try:
        return _derived(tokenizer, instruction)
    except _Unstable as reason:
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        if {OPEN, CLOSE} <= special and OPEN in str(tokenizer.chat_template):
            return chatml(instruction)
        raise RatchetError(
            f"{where}: its chat template {reason}, so turns cannot be added token by token; put a chat_template.jinja that only appends "
            "beside it, or remove it to get plain text markers"
        ) from None


def chatml(instruction: str) -> Pieces:
    """ChatML (SmolLM2, Qwen 2 to 3 and others), with thoughts kept in earlier turns."""
    user = f"{OPEN}user\n"
    return Pieces(f"{OPEN}system\n{instruction}{CLOSE}\n{user}", f"\n{user}", f"{CLOSE}\n{OPEN}assistant\n", CLOSE)


def _derived(tokenizer: Any, instruction: str) -> Pieces:
    if "strftime_now" in str(tokenizer.chat_template) and "date_string" not in str(tokenizer.chat_template):
        raise _Unstable("writes the day of its rendering")
    rendered = _renderings(tokenizer, instruction)
    for shorter, longer, reply in zip(rendered, rendered[1:], _REPLIES, strict=False):
        if not longer.startswith(shorter + reply):
            raise _Unstable("rewrites earlier turns")
    head, act = _around(rendered[0], _OBSERVATIONS[0])
    between, act_again = _around(rendered[1][len(rendered[0] + _REPLIES[0]) :], _OBSERVATIONS[1])
    between_again, act_third = _around(rendered[2][len(rendered[1] + _REPLIES[1]) :], _OBSERVATIONS[2])
    if (between, act, act) != (between_again, act_again, act_third):
        raise _Unstable("writes other text around later turns")
    end, mid = _end_of_turn(tokenizer, between)
    return Pieces(head, mid, act, end)


def _renderings(tokenizer: Any, instruction: str) -> list[str]:
    """One, two and three turns, each with the opening of the reply that comes next."""
    from jinja2 import TemplateError

    def conversation(turns: int, system: bool) -> list[dict[str, str]]:
        first = _OBSERVATIONS[0] if system else f"{instruction}\n\n{_OBSERVATIONS[0]}"
        messages = [{"role": "system", "content": instruction}] if system else []
        for reply, observation in zip(("", *_REPLIES), (first, *_OBSERVATIONS[1:]), strict=True):
            messages += [{"role": "assistant", "content": reply}] if reply else []
            messages.append({"role": "user", "content": observation})
        return messages[: (2 * turns if system else 2 * turns - 1)]

    def render(system: bool) -> list[str]:
        texts = [
            tokenizer.apply_chat_template(conversation(turns, system), tokenize=False, add_generation_prompt=True, date_string=DAY)
            for turns in (1, 2, 3)
        ]
        if any(text.count(instruction) != 1 for text in texts):
            raise _Unstable("does not show its system message once")
        return texts

    try:
        return render(system=True)
    except (TemplateError, _Unstable):  # some refuse a system message, some leave it out
        pass
    try:
        return render(system=False)
    except (TemplateError, TypeError, ValueError) as error:
        raise _Unstable(f"cannot be rendered ({str(error).splitlines()[0]})") from None


def _around(text: str, content: str) -> tuple[str, str]:
    if text.count(content) != 1:
        raise _Unstable("does not show each turn once and as it is")
    before, _, after = text.partition(content)
    return before, after


def _end_of_turn(tokenizer: Any, text: str) -> tuple[str, str]:
    """(the special token that ends a reply, the text behind it)."""
    found = [(text.find(token.content), token.content) for token in tokenizer.added_tokens_decoder.values() if token.special]
    first = min(((at, -len(content), content) for at, content in found if at >= 0), default=None)
    if first is None or text[: first[0]].strip():
        raise _Unstable("has no end-of-turn token behind a reply")
    return first[2], text[first[0] + len(first[2]) :]
