"""The forecasts of the online rounds: made from the settings, and refused before anything is played where model or limits cannot hold them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import RatchetError
from ratchet.settings_online import forecast_tokens
from tasks.common import Stage

if TYPE_CHECKING:
    from ratchet.learners.forecast import Forecaster

SECTION = "evolve_online.forecast"


def forecaster_of(stage: Stage, folder: Path, model: Any) -> Forecaster | None:
    """What asks `model` of `folder` for forecasts; None where `weight` is 0.

    Raises RatchetError for a model that cannot take branches, a PLAN that is longer than its context, and a budget that the longest
    episode with its branches is above.
    """
    from ratchet.episodes.template import load_template
    from ratchet.learners.forecast import Forecaster
    from ratchet.models.branches import check_takes_branches

    settings = stage.settings
    online, env = settings.evolve_online, settings.env
    own = online.forecast
    if not own.weight:
        return None
    if own.packing == "branches":
        check_takes_branches(model, str(folder), f"{SECTION}.packing to separate")
    context = int(model.config.get_text_config().max_position_embeddings)
    found = Forecaster(
        load_template(folder, env.action_format),
        horizon=own.horizon,
        gate=own.gate,
        samples=online.samples,
        seed=settings.seed,
        context=context,
        target_norm=own.target_norm,
        group_norm=own.group_norm,
        replace_invalid=own.replace_invalid,
        prefixes=own.prefixes,
        length_power=own.length_power,
    )
    plan = found.longest_plan
    if plan + 2 > context:
        raise RatchetError(
            f"{SECTION}: PLAN takes {plan} tokens of {folder}, whose context of {context} then holds no action; set {SECTION}.weight to 0, or "
            "take a model with a longer context"
        )
    if (most := forecast_tokens(own, env.max_tokens, env.max_steps, env.max_reply_tokens, plan)) > online.batch_tokens:
        raise RatchetError(
            f"evolve_online.batch_tokens: {online.batch_tokens} is below {most}, one episode of env.max_tokens={env.max_tokens} with its "
            f"forecasts, of which PLAN takes {plan} tokens each; raise it to that, or lower {SECTION}.prefixes or horizon"
        )
    return found


def targets_of(curve: list[dict[str, Any]]) -> int:
    """Forecasts of all iterations."""
    return int(sum(point.get("forecast_targets", 0) for point in curve))


def loss_of(metrics: dict[str, Any]) -> dict[str, float]:
    """`forecast_nll`: nats a token of a target, whatever the weights; nothing where there was no target."""
    tokens = metrics.get("forecast_tokens", 0)
    return {"forecast_nll": metrics["forecast_nats"] / tokens} if tokens else {}
