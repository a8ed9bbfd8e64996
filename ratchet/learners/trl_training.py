"""Runs a trainer of TRL's so that what it logs is told while it trains, in our way and not printed in its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ratchet.clock import CLOCK
from ratchet.errors import RatchetError


def train(
    trainer: Any,
    name: str,
    point_of: Callable[[int, int, dict[str, Any]], dict[str, Any]],
    tell: Callable[[int, int, dict[str, Any]], None],
    spoiled: str,
) -> list[dict[str, Any]]:
    """Trains, and returns the curve: a point for each log that holds `name`, as `point_of` (step, steps in all, log) makes it. `tell` is
    given each at once. Raises RatchetError with the text `spoiled` where the weights are not finite afterwards."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    curve: list[dict[str, Any]] = []

    class Telling(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if logs and name in logs:
                curve.append(point_of(int(state.global_step), int(state.max_steps), logs))
                tell(int(state.global_step), int(state.max_steps), curve[-1])

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Telling())
    with CLOCK.phase("learning"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # TRL 1.16 reads transformers' old name
        trainer.train()
    if not all(bool(value.isfinite().all()) for value in trainer.model.parameters()):
        raise RatchetError(spoiled)
    return curve
