"""Settings of the critic's part of a round (Q-Evolve, methods §5): the buffer, the critic, the offline update, when rounds stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from ratchet.section import Count, Section, Share
from ratchet.settings_online import SHORTEST_PLAN, Clip, Forecasting, forecast_tokens

if TYPE_CHECKING:
    from ratchet.settings import Settings


class OwnEpisodes(Section):
    """What the actor plays for the buffer."""

    tasks: int = Field(ge=0, description="training tasks that the actor plays for the buffer; 0 = none beside its share of the harvest")
    samples: Count = Field(description="episodes a task; 3 in the paper")
    greedy: int = Field(ge=0, description="of these samples so many greedy, at most one: a second would be the same")
    temperature: float = Field(gt=0, le=10, description="sampling temperature of the others")
    shard: Count = Field(description="episodes a shard, the unit of work and of resume")

    @model_validator(mode="after")
    def _once(self) -> OwnEpisodes:
        if self.greedy > 1 or self.greedy > self.samples:
            raise ValueError(f"greedy: {self.greedy} greedy episodes of a task would all be the same; set it to 0 or 1, not above samples")
        return self


class Buffer(Section):
    """What a round's critic and offline update learn from, fixed when the round begins."""

    experts: int = Field(ge=0, description="solved demonstrations in it; where there are none, the strongest policy's successes of the harvest")
    own: OwnEpisodes = Field(description="the actor's own episodes")
    pool: bool = Field(description="episodes of other models of the harvest's pool as well; they serve the meter otherwise")
    online_failures: bool | Count = Field(description="failures of the last online round as well: all of them, none, or at most so many")
    max_age: int = Field(ge=0, description="rounds for which episodes of earlier buffers are kept; 0 = the round's own alone")
    held_out_share: float = Field(ge=0, lt=1, description="share of the tasks that the critic is not fitted on, to measure it")


class LowRank(Section):
    """Low-rank updates of the critic's backbone."""

    rank: int = Field(ge=0, description="rank of the updates (LoRA); 0 = all weights are learned")
    alpha: float = Field(gt=0, description="the update is scaled by alpha / rank")


class FitCritic(Section):
    """V and Q of a round, by weighted implicit Q-learning."""

    enabled: bool = Field(description="fit a critic on each round's buffer")
    backbone: Literal["round", "previous"] = Field(
        description="it begins as the actor at the round's start, or as the critic of the round before where there is one"
    )
    lora: LowRank = Field(description="low-rank updates in place of all weights")
    reward: Literal["solved", "score"] = Field(description="on the last action: solved or not, or the benchmark's graded score")
    gamma: float = Field(gt=0, le=1, description="discount a step")
    lam: float = Field(ge=0, le=1, description="λ of GAE")
    tau: float = Field(gt=0, lt=1, description="expectile of Q that V is; 0.5 = the mean")
    polyak: float = Field(gt=0, le=1, description="rate at which Q's target heads follow; 0.005 in the paper")
    twin: bool = Field(description="two heads of Q, of whose targets the smaller one counts")
    time_term: bool = Field(description="later steps weigh more")
    success_term: bool = Field(description="steps of successes weigh more; without both terms it is plain IQL")
    aux: bool = Field(description="retrospective rewards train Q; they are never part of an advantage")
    truncated: Literal["bootstrap", "terminal"] = Field(
        description="an end by a budget is one to go on from, or as final as the environment's own, for tasks that have to be solved within it"
    )
    advantage: Literal["gae", "q_minus_v", "td", "potential", "gae_aux"] = Field(description="the process reward; all but gae are for comparison")
    epochs: Count = Field(description="times that the buffer is read")
    lr: float = Field(gt=0, le=1, description="peak learning rate")
    warmup_share: Share = Field(description="share of the steps in which it rises, 0 to 1")
    batch_tokens: Count = Field(description="tokens an optimiser step")
    max_grad_norm: float = Field(gt=0, description="gradients longer than this are scaled to it")
    min_rank_correlation: float = Field(
        ge=-1, le=1, description="gate: Spearman's of V with the outcome on held-out episodes, below which the critic is not used"
    )


class Reference(Section):
    """The divergence from the first policy."""

    weight: float = Field(ge=0, description="weight of the divergence; 0 = none, 0.01 in the paper")
    model: Literal["warm", "round"] = Field(description="from the warm start, or from the actor at the round's start")
    estimator: Literal["seen", "k3"] = Field(
        description="seen: of the token that stands there against all others, at most the divergence; k3: unbiased for tokens that the actor "
        "itself samples, without a bound for those that it has turned from"
    )


class Awr(Section):
    """What `method: awr` reads."""

    temperature: float = Field(gt=0, description="weights are exp(A / temperature)")
    clip: float = Field(gt=0, description="at most this")


class Eto(Section):
    """What `method: eto` reads: TRL's DPO on pairs of whole episodes."""

    beta: float = Field(gt=0, description="β of DPO")
    batch: Count = Field(description="pairs an optimiser step")
    pairs: Count = Field(description="most pairs of a task")


class Rerank(Section):
    """What `method: rerank` reads."""

    candidates: int = Field(ge=2, description="replies that are sampled, of which the critic chooses")
    temperature: float = Field(gt=0, le=10, description="their sampling temperature")


PUBLISHED: dict[str, Section] = {
    "awr": Awr(temperature=1.0, clip=20.0),
    "eto": Eto(beta=0.1, batch=8, pairs=4),
    "rerank": Rerank(candidates=4, temperature=1.0),
}
"""What each method alone reads, as in params.yaml: β and the clip are the papers'."""


class EvolveOffline(Section):
    """An update of the actor on the round's buffer, before its online round."""

    enabled: bool = Field(description="update the actor on each round's buffer")
    method: Literal["bppo", "awr", "rft", "eto", "rerank"] = Field(
        description="behaviour-proximal policy optimisation on the critic's advantages; or a baseline on the same data: advantage-weighted "
        "regression, imitation of experts and own successes, DPO on pairs of episodes (TRL), the critic as a mere reranker"
    )
    clip: Clip = Field(description="bounds of the ratio to the round's start, for bppo")
    ratio_level: Literal["token", "step_sum", "step_mean"] = Field(description="where that ratio is taken")
    reference: Reference = Field(description="divergence from the first policy")
    max_ratio: float = Field(gt=0, description="bound of the ratio round's start / policy that played, which weighs steps of older episodes")
    awr: Awr = Field(description="of method=awr")
    eto: Eto = Field(description="of method=eto")
    rerank: Rerank = Field(description="of method=rerank")
    forecast: Forecasting = Field(description="forecasting the buffer's successes (CoPE)")
    epochs: Count = Field(description="times that the buffer is read")
    optimizer: Literal["adamw", "muon"] = Field(description="muon works on matrices, with AdamW for the rest")
    lr: float = Field(gt=0, le=1, description="learning rate")
    warmup_share: Share = Field(description="share of the steps in which it rises, 0 to 1")
    step_tokens: Count = Field(description="tokens an optimiser step")
    batch_tokens: Count = Field(description="most tokens in one pass of the model")
    max_grad_norm: float = Field(gt=0, description="gradients longer than this are scaled to it")

    @model_validator(mode="after")
    def _nothing_unread(self) -> EvolveOffline:
        for name, published in PUBLISHED.items():
            if name != self.method and getattr(self, name) != published:
                raise ValueError(
                    f"{name}: is read by method={name} alone, and method is {self.method}; set evolve_offline.method to {name}, or leave "
                    f"evolve_offline.{name} as it is in params.yaml"
                )
        if self.method in ("eto", "rerank") and self.forecast.weight:
            raise ValueError(
                f"forecast.weight: {self.forecast.weight} is not read by method={self.method}, whose update is not the actor learner's; "
                "set evolve_offline.forecast.weight to 0, or take bppo, awr or rft"
            )
        if self.forecast.replay.share:
            raise ValueError("forecast.replay.share: a buffer already holds what it may replay; set evolve_offline.forecast.replay.share to 0")
        if self.forecast.mode == "separate":
            raise ValueError("forecast.mode: separate steps are for online rounds; set evolve_offline.forecast.mode to joint")
        return self


class Stop(Section):
    """When a run needs no further round (methods §5)."""

    enabled: bool = Field(description="stop before the last round where it no longer pays, and promote only the best round on `select`")
    min_gain: Share = Field(description="a gain on `select` that is worth a round, 0 to 1; half a point in the paper")
    patience: Count = Field(description="rounds in a row whose chance of such a gain is below a half")
    min_ess: Share = Field(description="gate: effective sample size of the offline update's ratios, as a share of the steps")
    max_kl: float = Field(gt=0, description="gate: divergence of the updated actor from the reference, nats a token")
    max_td_ratio: float = Field(gt=0, description="gate: the critic's TD error on held-out tasks over that on those it was fitted on")
    max_action_shift: Share = Field(description="gate: Jensen-Shannon divergence of the mix of actions from the round before, bits")
    resamples: int = Field(ge=100, description="bootstrap resamples")


NEEDS_CRITIC = ("bppo", "awr", "rerank")


def check_critic(settings: Settings) -> None:
    """Raises ValueError for what cannot work together, naming the way out."""
    offline, critic, env = settings.evolve_offline, settings.fit_critic, settings.env
    if offline.enabled and offline.method in NEEDS_CRITIC and not critic.enabled:
        raise ValueError(
            f"evolve_offline.method: {offline.method} needs a critic; set fit_critic.enabled to true, take rft or eto, or set "
            "evolve_offline.enabled to false"
        )
    if not offline.enabled and not settings.evolve_online.enabled:
        raise ValueError("evolve_online.enabled: false leaves nothing that evolves the actor; set evolve_offline.enabled to true, or leave it on")
    for name, own in (("fit_critic", critic), ("evolve_offline", offline)):
        if own.enabled and own.batch_tokens < env.max_tokens:
            raise ValueError(f"{name}.batch_tokens: {own.batch_tokens} is below env.max_tokens={env.max_tokens}, one episode; raise it to that")
    most = forecast_tokens(offline.forecast, env.max_tokens, env.max_steps, env.max_reply_tokens, plan=SHORTEST_PLAN)
    if offline.enabled and offline.forecast.weight and most > offline.batch_tokens:
        raise ValueError(
            f"evolve_offline.batch_tokens: {offline.batch_tokens} is below {most}, one episode of env.max_tokens={env.max_tokens} with its "
            f"forecasts; raise it to that, or lower evolve_offline.forecast.prefixes (now {offline.forecast.prefixes}) or horizon"
        )
    games = settings.prepare.games.train
    if uses_buffer(settings) and settings.buffer.own.tasks > games:
        raise ValueError(f"buffer.own.tasks: {settings.buffer.own.tasks} is above prepare.games.train={games}; lower it")


def uses_buffer(settings: Settings) -> bool:
    """Whether any stage of a round reads its buffer."""
    return settings.fit_critic.enabled or settings.evolve_offline.enabled
