"""Settings of the online rounds: how they play, who gets credit, and which terms the loss has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema, model_validator

from ratchet.section import Count, Section, Share
from ratchet.settings_meter import Credit, MeterCredit


class Clip(Section):
    """Bounds of the importance ratio (DAPO's clip-higher; dual clip)."""

    low: float = Field(gt=0, lt=1, description="the ratio is clipped below at 1 - low")
    high: float = Field(gt=0, description="the ratio is clipped above at 1 + high")
    dual: float | None = Field(gt=1, description="bound of the loss for negative advantages, above 1; null = none")


class Dapo(Section):
    """What `credit: dapo` reads beside the clip."""

    batches: int = Field(
        ge=2, description="most batches of rollouts an iteration in search of groups whose episodes differ in outcome; then it fails"
    )
    overlong_buffer: Share = Field(
        description="share of env.max_tokens, before its end, over which a penalty grows from 0 to 1 with the length of an episode; 0 = none"
    )


class Gigpo(Section):
    """What `credit: gigpo` reads."""

    omega: float = Field(ge=0, description="weight of the advantage among steps that saw the same")
    gamma: float = Field(gt=0, le=1, description="discount a step of the return-to-go")


class Hgpo(Section):
    """What `credit: hgpo` reads."""

    k: int = Field(ge=0, description="observations before the latest one that the longest histories compare")
    alpha: float = Field(ge=0, description="how much more a longer common history counts; 0 = all alike")
    gamma: float = Field(gt=0, le=1, description="discount a step of the return-to-go")


class Empg(Section):
    """What `credit: empg` reads."""

    k: float = Field(ge=0, description="how fast a step's weight falls with its entropy")
    k_next: float = Field(ge=0, description="how fast the bonus falls with the entropy of the step after")
    zeta: float = Field(ge=0, description="weight of that bonus")


PUBLISHED: dict[str, Section] = {
    "dapo": Dapo(batches=10, overlong_buffer=0.2),
    "gigpo": Gigpo(omega=1.0, gamma=0.95),
    "hgpo": Hgpo(k=2, alpha=1.0, gamma=0.95),
    "empg": Empg(k=1.0, k_next=1.0, zeta=0.05),
}
"""The papers' values (DAPO's buffer is their 4096 of 20480 tokens), by the estimator that alone reads them."""


LEARNS_FROM_SUCCESSES = ("success_sft", "forecast")
"""Sections of terms that `balance` weighs."""


class Echo(Section):
    """The likelihood of what was read after the first action, of all episodes alike."""

    weight: float = Field(ge=0, description="weight of the term; 0 = none, 0.05 in the paper")


class SuccessSft(Section):
    """The likelihood of what the policy itself wrote in the episodes that it solved."""

    weight: float = Field(ge=0, description="weight of the term; 0 = none")


AllOrCount = Annotated[int | str, WithJsonSchema({"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 1}]})]


class Replay(Section):
    """Earlier successes of a task as targets of the forecast term, for its groups that have no success."""

    share: float = Field(ge=0, lt=1, description="of the forecast loss, the most that replay may be; 0 = none, 0.3 where it is used")
    max_age: int = Field(ge=0, description="rounds after which a success is forgotten")


class Forecasting(Section):
    """CoPE: in its successes the policy learns to foresee its own coming actions; no forecast is made when it plays."""

    weight: float = Field(ge=0, description="weight of the forecast term beside the policy's; 0 = none, 0.01 in the paper")
    horizon: int = Field(ge=0, description="actions that are asked for beyond the next one (the paper's K)")
    gate: Literal["wins", "mixed", "all"] = Field(
        description="episodes that are asked: successes, successes of groups with both outcomes, or all (unfiltered, for comparison: it collapses)"
    )
    target_norm: Literal["mean", "sum"] = Field(description="mean over a target's tokens, or their sum")
    group_norm: bool = Field(description="divide by the successes of a group; false divides by evolve_online.samples, whatever succeeds")
    replace_invalid: bool = Field(description="targets are the next actions that the environment took, in place of the next ones")
    length_power: float = Field(
        ge=0, description="a success weighs (steps of its group's shortest / its own) to this power, in the numerator alone; 0 = all alike"
    )
    prefixes: AllOrCount = Field(
        description="points of an episode that are asked at: all, or so many, drawn anew each time with the same expectation"
    )
    mode: Literal["joint", "separate"] = Field(description="in the policy's optimiser steps, or in steps of its own behind them")
    packing: Literal["branches", "separate"] = Field(
        description="forecasts share the pass of their episode, or take a pass each with its whole history: the same gradients at several times the cost"
    )
    replay: Replay = Field(description="earlier successes for groups without one")

    @model_validator(mode="after")
    def _replay_is_of_successes(self) -> Forecasting:
        if self.replay.share and self.gate == "all":
            raise ValueError(f"replay.share: {self.replay.share} replays successes, and gate=all asks failures too; set gate to wins or mixed, or replay.share to 0")
        return self

    @model_validator(mode="after")
    def _all_or_so_many(self) -> Forecasting:
        if self.prefixes != "all" and (isinstance(self.prefixes, str) or self.prefixes < 1):
            raise ValueError(f"prefixes: {self.prefixes} is neither `all` nor a number from 1; write one of them")
        return self


SHORTEST_PLAN = 3  # tokens: a model's from scratch


def forecast_tokens(own: Forecasting, max_tokens: int, max_steps: int, max_reply_tokens: int, plan: int) -> int:
    """The most tokens that must be in one pass: those of the longest episode with its forecasts, or of one forecast with its history.

    `plan`: tokens of PLAN. An action with the line break or end-of-turn behind it is never longer than its reply, and each is in at most
    horizon + 1 forecasts, unless invalid ones are replaced.
    """
    if own.packing == "separate":
        return max_tokens + plan + 1
    asked = own.horizon + 1
    if isinstance(own.prefixes, int):
        return max_tokens + min(own.prefixes, max_steps) * (plan + asked * max_reply_tokens)
    written = max_steps * asked * max_reply_tokens
    return max_tokens + max_steps * plan + (written if own.replace_invalid else min(written, asked * max_tokens))


class EvolveOnline(Section):
    """Online policy gradient."""

    enabled: bool = Field(description="play and learn online; false leaves a round to evolve_offline")
    iterations: Count = Field(description="iterations a round")
    tasks: Count = Field(description="tasks an iteration; each is one group")
    samples: int = Field(ge=2, description="episodes a group, from 2: an advantage compares them with each other")
    temperature: float = Field(gt=0, le=10, description="sampling temperature; above 0, or all samples of a group are the same")
    credit: Literal["grpo", "rloo", "dapo", "gigpo", "hgpo", "empg"] = Field(
        description="the estimator that turns outcomes into advantages (ratchet/credit)"
    )
    dapo: Dapo = Field(description="of credit=dapo")
    gigpo: Gigpo = Field(description="of credit=gigpo")
    hgpo: Hgpo = Field(description="of credit=hgpo")
    empg: Empg = Field(description="of credit=empg")
    reward: Literal["solved", "score"] = Field(description="solved or not, or the benchmark's graded score")
    clip: Clip = Field(description="bounds of the importance ratio")
    loss_mean: Literal["token", "episode"] = Field(description="mean over all tokens of a batch, or over episodes first")
    ratio_level: Literal["token", "step_sum", "step_mean"] = Field(description="where the importance ratio is taken")
    kl_weight: float = Field(ge=0, description="weight of the divergence from the round's start; 0 = none")
    echo: Echo = Field(description="learning to foresee observations")
    success_sft: SuccessSft = Field(description="imitation of own successes")
    forecast: Forecasting = Field(description="forecasting own successes (CoPE)")
    share: Credit = Field(description="how a meter or a critic shares out the advantage")
    meter: MeterCredit = Field(description="credit by a progress meter (DeltaTTG; docs/meter.md)")
    balance: Literal["none", "stratum", "last_action"] = Field(
        description="terms that learn from successes give each stratum its share of the tasks: strata are those of the environment, or the "
        "type of an episode's last action"
    )
    null_policy: Literal["keep", "leave_out"] = Field(
        description="tasks that are solved by doing nothing are played like all others, or left out of the round"
    )
    optimizer: Literal["adamw", "muon"] = Field(description="muon works on matrices, with AdamW for the rest")
    lr: float = Field(gt=0, le=1, description="learning rate")
    warmup: int = Field(ge=0, description="iterations in which the learning rate rises; the first steps of AdamW are the noisiest")
    steps: Count = Field(description="optimiser steps an iteration")
    average: float = Field(ge=0, lt=1, description="a candidate is a moving average of the weights over iterations, of which this share is kept at each; 0 = none")
    batch_tokens: Count = Field(description="most tokens in one pass of the model; longer batches are split, with the same result")
    max_grad_norm: float = Field(gt=0, description="gradients longer than this are scaled to it")
    logprob_limit: float = Field(
        gt=0, description="largest difference of a token's log-prob between sampler and learner, nats; above it they do not compute the same"
    )
    keep_every: Count = Field(description="a candidate every so many iterations")
    shard: Count = Field(description="episodes a shard, the unit of work and of resume")

    @model_validator(mode="after")
    def _combinations(self) -> EvolveOnline:
        if self.keep_every > self.iterations:
            raise ValueError(f"keep_every: {self.keep_every} is above iterations={self.iterations}, so no candidate is kept; lower it")
        if self.steps > self.tasks * self.samples:
            raise ValueError(f"steps: {self.steps} optimiser steps cannot share tasks x samples={self.tasks * self.samples} episodes")
        self._nothing_unread()
        return self

    def _nothing_unread(self) -> None:
        """Raises ValueError for a setting that was given and that nothing would read."""
        for name, published in PUBLISHED.items():
            given = getattr(self, name)
            if name != self.credit and given != published:
                key = next(key for key in type(published).model_fields if getattr(given, key) != getattr(published, key))
                raise ValueError(
                    f"{name}.{key}: {getattr(given, key)} is read by credit={name} alone, and credit is {self.credit}; set "
                    f"evolve_online.credit to {name}, or leave this at {getattr(published, key)}"
                )
        if self.balance != "none" and not any(getattr(self, name).weight for name in LEARNS_FROM_SUCCESSES):
            raise ValueError(
                f"balance: {self.balance} weighs terms that learn from successes, and all are off; set "
                + " or ".join(f"evolve_online.{name}.weight" for name in LEARNS_FROM_SUCCESSES)
                + ", or leave evolve_online.balance at none"
            )
