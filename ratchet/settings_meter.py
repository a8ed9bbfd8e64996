"""Settings of the progress meter (DeltaTTG, methods §3): how one is fitted and judged, and what its credit is in the online rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, WithJsonSchema, model_validator

from ratchet.section import Count, Section, Share

if TYPE_CHECKING:
    from ratchet.settings import Settings

ONE_ADVANTAGE = ("grpo", "rloo", "dapo")
"""Estimators with one advantage for all steps of an episode, which alone can be shared out among them."""

AutoOrShare = Annotated[float | str, WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "number", "minimum": 0, "maximum": 1}]})]
AllOrCount = Annotated[int | str, WithJsonSchema({"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 1}]})]


class Credit(Section):
    """How an outcome's advantage is shared out among an episode's steps; read where a meter or a critic gives the shares."""

    rho: Share = Field(description="part that is spread evenly, 0 to 1; 0.2 in the paper")
    cap: float = Field(ge=1, description="most that a step's weight may be (the paper's M = 5); 1 = all steps weigh the same")
    form: Literal["density", "mass"] = Field(description="a share is of each of a step's tokens alike, or a mass spread over its tokens")
    beta: AutoOrShare = Field(
        description="the meter's part of the share, the rest is the critic's (fit_critic); 1 = the meter alone, 0 = the critic alone, "
        "auto = by how often each is right about held-out steps"
    )

    @model_validator(mode="after")
    def _auto_or_a_part(self) -> Credit:
        if self.beta != "auto" and (isinstance(self.beta, str) or not 0 <= self.beta <= 1):
            raise ValueError(f"beta: {self.beta} is neither `auto` nor a number from 0 to 1; write one of them")
        return self

    @property
    def asks_critic(self) -> bool:
        return self.beta != 1


class FailureCost(Section):
    """C, the cost of what cannot be completed."""

    percentile: float = Field(gt=0, le=100, description="of what successes of the pool still have to write, over all their prefixes")
    factor: float = Field(gt=0, description="C is so many times that")


class MeterCredit(Section):
    """Credit by a progress meter: the steps that brought success nearer, or further away, carry the outcome."""

    enabled: bool = Field(description="fit a meter on each round's harvest, and let it share out the advantage")
    given: str | None = Field(min_length=1, description="folder of a meter that another run fitted (models/rounds/K/meter), for the first round; null = none")
    transfer: bool = Field(description="a given meter may be of another environment")
    delta: Literal["paper", "td"] = Field(description="what a step took off the cost, or that less the tokens it wrote itself")
    cost: Literal["hard", "soft"] = Field(description="the estimate where it is completable and C where not, or both by their probability")
    terminal: Literal["C", "meter"] = Field(description="what an episode that a budget cut off ends with: C, or the last estimate")
    failure_cost: FailureCost = Field(description="C")
    sign_reversal: bool = Field(description="in failures the steps that led away carry the outcome; false is for comparison")
    free_share: Share = Field(description="share of the answers that are written freely, to see how often they do not parse")


class MeterSplit(Section):
    """Parts of the pool's tasks."""

    sft: float = Field(gt=0, lt=1, description="for the first stage")
    rl: float = Field(ge=0, lt=1, description="for the second stage, which learns from other episodes")
    calibration: float = Field(gt=0, lt=1, description="to calibrate the meter and to judge it")

    @model_validator(mode="after")
    def _whole(self) -> MeterSplit:
        total = self.sft + self.rl + self.calibration
        if abs(total - 1) > 1e-6:
            raise ValueError(f"sft: the three parts sum to {total:.4g}; change them so that they sum to 1")
        return self


class MeterSft(Section):
    """Likelihood of the right answers."""

    trainer: Literal["trl", "learner"] = Field(
        description="TRL's SFTTrainer, a prefix a row; or our learner, all questions of an episode in one pass (several times as fast)"
    )
    epochs: int = Field(ge=0, description="times that they are read; 0 = the stage is left out")
    lr: float = Field(gt=0, le=1, description="peak learning rate; 5e-6 for large models")
    batch: Count = Field(description="prefixes an optimiser step")
    examples: Count | None = Field(description="most prefixes; null = all")


class MeterRl(Section):
    """The prediction reward, by TRL's GRPOTrainer."""

    steps: int = Field(ge=0, description="optimiser steps; 0 = the stage is left out")
    lr: float = Field(gt=0, le=1, description="learning rate; 1e-6 for large models")
    prompts: Count = Field(description="prefixes a step")
    samples: int = Field(ge=2, description="answers to each")
    max_tokens: int = Field(ge=16, description="tokens of an answer; a longer one does not parse")
    temperature: float = Field(gt=0, le=10, description="sampling temperature")


class MeterGate(Section):
    """When a meter is not trusted, on held-out episodes: it is fitted again on the newest pool, and switched off if it fails again."""

    enforce: bool = Field(description="act on it; false only tells, for comparisons with an untrained meter")
    max_ece: Share = Field(description="most that the expected calibration error of its probabilities may be")
    min_sign_accuracy: Share = Field(description="least balanced accuracy of the direction of its steps, where exact labels exist")
    max_unparsable: Share = Field(description="largest share of freely written answers that do not parse")


class FitMeter(Section):
    """The meter of a round. One serves all actors of an environment; it is fitted again only where it fails its gate."""

    form: Literal["written", "head"] = Field(description="a line of JSON, or two numbers read off the question by a linear head (faster)")
    target: Literal["ttg", "steps", "score"] = Field(description="tokens still to write, steps still to go, or the final score that is missing")
    base: str | None = Field(description="actor whose warm start it begins as; null = the one that evolves")
    normalise: bool = Field(description="count a policy's tokens in its own mean a step, so that a verbose one does not look far from the end")
    prefixes: AllOrCount = Field(description="points of an episode that it learns from: all, or so many, drawn by seed")
    balance: bool = Field(description="both answers equally often right in what it learns from")
    split: MeterSplit = Field(description="parts of the pool's tasks")
    sft: MeterSft = Field(description="first stage")
    rl: MeterRl = Field(description="second stage; a head has none")
    gate: MeterGate = Field(description="when it is trusted")

    @model_validator(mode="after")
    def _combinations(self) -> FitMeter:
        if self.prefixes != "all" and (isinstance(self.prefixes, str) or self.prefixes < 1):
            raise ValueError(f"prefixes: {self.prefixes} is neither `all` nor a number from 1; write one of them")
        if self.form == "head" and self.sft.trainer == "trl":
            raise ValueError("sft.trainer: trl trains written answers, and form=head writes none; set fit_meter.sft.trainer to learner")
        if self.rl.steps and not self.split.rl and self.form == "written":
            raise ValueError("split.rl: 0 leaves no episodes to the second stage; raise it, or set fit_meter.rl.steps to 0")
        return self


def check_meter(settings: Settings) -> None:
    """Raises ValueError for what cannot work together."""
    online, own, fit = settings.evolve_online, settings.evolve_online.meter, settings.fit_meter
    shared = own.enabled or online.share.asks_critic
    if shared and online.credit not in ONE_ADVANTAGE:
        raise ValueError(
            f"evolve_online.credit: {online.credit} gives each step an advantage of its own, and a meter or critic shares out one of the "
            f"episode; set it to {', '.join(ONE_ADVANTAGE)}, or set evolve_online.meter.enabled to false and evolve_online.share.beta to 1"
        )
    if online.share.asks_critic and not settings.fit_critic.enabled:
        raise ValueError(
            f"evolve_online.share.beta: {online.share.beta} leaves a part of the share to a critic, and none is fitted; set fit_critic.enabled "
            "to true, or this to 1"
        )
    if own.enabled and online.share.beta == 0:
        raise ValueError("evolve_online.share.beta: 0 leaves the meter no part of the share; raise it, or set evolve_online.meter.enabled to false")
    if fit.base is not None and fit.base not in settings.actors:
        raise ValueError(f"fit_meter.base: no actor is called {fit.base!r}; take one of {', '.join(settings.actors)}, or null")
    if own.given is not None and not own.enabled:
        raise ValueError("evolve_online.meter.given: is read where the meter is enabled; set evolve_online.meter.enabled to true, or this to null")
