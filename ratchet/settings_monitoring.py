"""Settings of what watches a run: limits of the quality suite, of drift, and of the decision. docs/quality.md says what each means."""

from __future__ import annotations

from pydantic import Field, model_validator

from ratchet.section import Section, Share


class Check(Section):
    """Limits of the quality suite. Above one of severity `fail` the run stops with a verdict; the others are shown."""

    max_error_share: Share = Field(description="share of episodes that ended as errors, 0 to 1; fail")
    max_invalid_share: Share = Field(description="share of steps whose action was not admissible, 0 to 1; fail")
    max_truncated_share: Share = Field(description="share of episodes cut by a limit, 0 to 1; fail")
    max_replay_mismatch: Share = Field(description="share of replayed episodes that came out differently, 0 to 1; fail")
    max_duplicate_share: Share = Field(description="share of sampled episodes that do just what another sample of their task did, 0 to 1; warn")
    max_action_share: Share = Field(description="share of one literal action among the steps of a sampled policy, 0 to 1; warn")
    max_length_shift: float = Field(
        gt=0, description="shift of a policy's episode or reply lengths since the last accepted round, in standard deviations; warn"
    )
    min_class_share: float = Field(ge=0, le=0.5, description="least share of the rarer of solved and failed among the labels; warn")


class DriftLimits(Section):
    """Scores of one column from which it warns (`drift.detected` goes out) and fails (the version is not promoted); null = never."""

    warn: float | None = Field(ge=0, description="score beyond which the column warns; null = never")
    fail: float | None = Field(ge=0, description="score beyond which the version is not promoted; null = never")

    @model_validator(mode="after")
    def _order(self) -> DriftLimits:
        if self.warn is not None and self.fail is not None and self.fail < self.warn:
            raise ValueError(f"fail: {self.fail} is below warn={self.warn}, so nothing would ever only warn; raise it, or set warn to null")
        return self


class EffectiveLimits(Section):
    """Like DriftLimits, of a share that drift makes smaller."""

    warn: float | None = Field(ge=0, le=1, description="share below which the column warns; null = never")
    fail: float | None = Field(ge=0, le=1, description="share below which the version is not promoted; null = never")

    @model_validator(mode="after")
    def _order(self) -> EffectiveLimits:
        if self.warn is not None and self.fail is not None and self.fail > self.warn:
            raise ValueError(f"fail: {self.fail} is above warn={self.warn}, but less is worse here; lower it, or set warn to null")
        return self


class Drift(Section):
    """What a version does, compared with the version before and with the warm start, column by column, each by its own method."""

    enabled: bool = Field(description="false: nothing is compared; the evaluation's rows are checked all the same")
    ratio_episodes: int = Field(
        ge=0, description="harvested episodes of the actor that the new version scores, for effective_samples and kl; 0 = none, and neither"
    )
    episode_length: DriftLimits = Field(description="steps an episode: Wasserstein distance in standard deviations")
    tokens_per_step: DriftLimits = Field(description="tokens a reply: Wasserstein distance in standard deviations")
    action_types: DriftLimits = Field(description="mix of kinds of actions: Jensen-Shannon distance, 0 to 0.83")
    invalid_share: DriftLimits = Field(description="inadmissible steps: largest difference of rates in any stratum")
    refusal_share: DriftLimits = Field(description="steps without an action or that do nothing: largest difference of rates in any stratum")
    success: DriftLimits = Field(description="solved episodes: largest difference of rates in any stratum")
    value: DriftLimits = Field(description="the critic's values: Wasserstein distance in standard deviations")
    meter_cost: DriftLimits = Field(description="the meter's costs: Wasserstein distance in standard deviations")
    credit_weight: DriftLimits = Field(description="weights of steps: Wasserstein distance in standard deviations")
    effective_samples: EffectiveLimits = Field(description="ESS / N of the ratios between the new version and the round's start, over steps")
    kl: DriftLimits = Field(description="KL a step between the round's start and the new version, in nats")
    observations: DriftLimits = Field(description="AUC of a classifier that tells whose observations are whose; 0.5 = it cannot")


class Regression(Section):
    """What a scheduled look at the champion says beside its paired test; it warns."""

    max_slowdown: float = Field(ge=0, le=1, description="loss of tokens a second against the median of earlier runs on this machine, as a share")


class Decide(Section):
    """When a new version becomes champion."""

    alpha: float = Field(gt=0, lt=0.5, description="one-sided error that may be spent over all rounds of a run")
    max_stratum_loss: Share = Field(description="loss of success in one stratum above which a version is not promoted, 0 to 1")
    resamples: int = Field(ge=100, description="bootstrap resamples")
