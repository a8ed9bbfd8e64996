"""The prediction reward of a meter's answer (methods §3)."""

from __future__ import annotations

from ratchet.meter.answer import parse_answer


def nearness(one: float, other: float) -> float:
    """u = min/max of two numbers ≥ 0; 1 where both are 0."""
    return 1.0 if one == other else min(one, other) / max(one, other)


def prediction_reward(answer: str, completable: bool, remaining: int | None) -> float:
    """R = 0.2 + 0.8·u(v̂, v) where b = b̂ = 1, 1 where b = b̂ = 0, −1 otherwise and for what does not parse."""
    found = parse_answer(answer)
    if found is None or found.completable != completable:
        return -1.0
    if found.remaining is None or remaining is None:
        return 1.0
    return 0.2 + 0.8 * nearness(found.remaining, remaining)
