"""Where the action lies in a reply's tokens, so that it can be learned from token in, token out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ratchet.episodes.template import Template


def action_ids(template: Template, ids: Sequence[int]) -> tuple[int, ...] | None:
    """The tokens of a generated reply that hold its action, the first one where it calls a tool several times; None where it has none.

    They are a literal run of `ids`, never encoded again: the fewest that cover the action's text. Where its ends fall inside a token
    the whole token belongs to it, so a blank, a quotation mark or the like beside the action may come along, and no end is missing.
    A reply that was cut before its end-of-turn holds no action.
    """
    if not ids or ids[-1] not in template.ends:
        return None
    bare = tuple(ids[:-1])
    reply = _decode(template, bare)
    span = template.format.find(reply)
    if span is None:
        return None
    start, stop = span

    def held(count: int) -> int:
        """Characters of the reply that its first `count` tokens hold whole; a token may end within a character."""
        return _alike(_decode(template, bare[:count]), reply)

    beyond = _first(len(bare), lambda count: held(count) > start)  # the first that reaches into the action
    before = held(beyond - 1)
    first = _first(len(bare), lambda count: held(count) >= before)  # with all tokens of its first character
    return bare[first : _first(len(bare), lambda count: held(count) >= stop)]


def _decode(template: Template, ids: Sequence[int]) -> str:
    return template.tokenizer._tokenizer.decode(list(ids), skip_special_tokens=False)


def _alike(a: str, b: str) -> int:
    """Length of their common beginning."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _first(most: int, holds: Callable[[int], bool]) -> int:
    """The least count in 0..most for which `holds`, which stays true once it is, is true; `most` where it never is."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
