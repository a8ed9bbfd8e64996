"""Settings of the online rounds: how they play, who gets credit, and which terms the loss has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ratchet.section import Count, Section


class Clip(Section):
    """Bounds of the importance ratio (DAPO's clip-higher; dual clip)."""

    low: float = Field(gt=0, lt=1, description="the ratio is clipped below at 1 - low")
    high: float = Field(gt=0, description="the ratio is clipped above at 1 + high")
    dual: float | None = Field(gt=1, description="bound of the loss for negative advantages, above 1; null = none")


class EvolveOnline(Section):
    """Online policy gradient."""

    iterations: Count = Field(description="iterations a round")
    tasks: Count = Field(description="tasks an iteration; each is one group")
    samples: int = Field(ge=2, description="episodes a group, from 2: an advantage compares them with each other")
    temperature: float = Field(gt=0, le=10, description="sampling temperature; above 0, or all samples of a group are the same")
    credit: Literal["grpo"] = Field(description="the estimator that turns outcomes into advantages (ratchet/credit)")
    reward: Literal["solved", "score"] = Field(description="solved or not, or the benchmark's graded score")
    clip: Clip = Field(description="bounds of the importance ratio")
    loss_mean: Literal["token", "episode"] = Field(description="mean over all tokens of a batch, or over episodes first")
    ratio_level: Literal["token", "step_sum", "step_mean"] = Field(description="where the importance ratio is taken")
    kl_weight: float = Field(ge=0, description="weight of the divergence from the round's start; 0 = none")
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
        return self
