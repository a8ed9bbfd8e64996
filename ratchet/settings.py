"""Every setting of a run, typed: what it means, its unit and its bounds. The values are in params.yaml, which is always complete.

`load` reads a complete params.yaml; ratchet/rendering.py makes one from defaults, a preset and `--set`. Whatever cannot work is
refused here, when it is read, in one line: what is wrong, in which file and key, and what to do.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError, create_model, model_validator

from ratchet.envs.benchmarks import benchmark_class, look_in, own_code
from ratchet.errors import RatchetError
from ratchet.files import sha256_json
from ratchet.policies.served_settings import Served
from ratchet.section import Count, Section, Share
from ratchet.settings_critic import Buffer, EvolveOffline, FitCritic, Stop, check_critic
from ratchet.settings_errors import explain
from ratchet.settings_meter import FitMeter, check_meter
from ratchet.settings_monitoring import Check, Decide, Drift, Regression
from ratchet.settings_online import SHORTEST_PLAN, EvolveOnline, forecast_tokens
from ratchet.yaml_files import read_yaml

SCRIPTED = ("expert", "random", "verbose")
OF_A_ROUND = ("harvest", "buffer", "fit_meter", "fit_critic", "evolve_offline", "evolve_online")
LEARNED_ROOM = 128  # tokens that an instruction and a first observation need before anything can be replied
_ACTOR_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class Env(Section):
    """The benchmark and the limits of one episode."""

    name: str = Field(description="the benchmark, or module:Class of your own (docs/environments.md)")
    options: Any = Field(description="settings of this benchmark alone; they start from its defaults where the name changes")
    code: str | None = Field(description="hash of the code of your own environment, derived by `ratchet run` and `ratchet render`; null = none")
    max_steps: Count = Field(description="turns after which an episode is truncated")
    max_invalid: Count | None = Field(description="inadmissible actions in a row after which an episode is truncated; null = no such limit")
    max_tokens: int = Field(ge=64, description="tokens of a whole episode, observations included, after which it is truncated")
    max_reply_tokens: int = Field(ge=4, description="tokens of one reply; a longer one is cut and holds no action")
    action_format: Literal["plain", "tagged", "tool"] = Field(
        description="how a reply says its action: `> ACTION` on its last line, <think> and <action> tags, or a call of the tool `act` in JSON"
    )
    workers: int = Field(ge=1, le=256, description="environment processes; results do not depend on it")
    players: int = Field(
        ge=1, le=256, description="processes in which a model plays shards side by side, each with `workers` of its own; results do not depend on it"
    )
    threads: int | None = Field(
        ge=1, le=256, description="torch threads of each that plays, null = as torch takes; more than 1 pays for models above some 10M parameters"
    )
    alternate: bool = Field(
        description="two shards in turns: the environments step one while the model works on the other, with keys and values kept for both; "
        "results do not depend on it"
    )
    step_timeout_s: float = Field(gt=0, description="seconds that one step may take before its worker is replaced")
    max_error_share: Share = Field(description="share of episodes that may end as errors before a stage fails, 0 to 1")

    @model_validator(mode="after")
    def _one_way_beside(self) -> Env:
        if self.alternate and self.players > 1:
            raise ValueError(f"alternate: true has no use beside players={self.players}, which play shards side by side; set env.alternate to false")
        return self

    @model_validator(mode="after")
    def _room_to_reply(self) -> Env:
        least = LEARNED_ROOM + self.max_reply_tokens
        if self.max_tokens < least:
            raise ValueError(
                f"max_tokens: {self.max_tokens} leaves no room for one reply of max_reply_tokens={self.max_reply_tokens} after the "
                f"first observation; set env.max_tokens to at least {least}"
            )
        return self


class Games(Section):
    """How many games each split gets; the splits share no scene that could leak."""

    train: Count = Field(description="games to learn from")
    seen: Count = Field(description="games of training scenes that nothing trains on, for the learners' held-out loss")
    select: Count = Field(description="games of the panel that chooses candidates")
    confirm: Count = Field(description="games of the panel that decides promotion")
    test: Count = Field(description="games of the panel that is played once, at the end")


class Prepare(Section):
    """Games, panels and the tokenizer."""

    games: Games = Field(description="games a split")
    vocab_size: int | None = Field(
        ge=300, le=65536, description="tokens of the tokenizer made for from-scratch actors (256 bytes included); null = none is made"
    )


class Demonstrate(Section):
    """Episodes that the actors imitate before the first round."""

    episodes: int = Field(ge=0, description="episodes to play, each on a game of its own; 0 only where some are imported")
    policy: Literal["expert", "random"] = Field(description="who plays them")
    imported: str | None = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="episodes from elsewhere on top, by the name that `ratchet import` gave; null = none"
    )
    slip_rate: float = Field(ge=0, lt=1, description="share of the expert's steps that name a wrong thing, to show recovery; never imitated")

    @model_validator(mode="after")
    def _some(self) -> Demonstrate:
        if self.episodes == 0 and self.imported is None:
            raise ValueError("episodes: 0 leaves nothing to imitate; play some, or set demonstrate.imported to what `ratchet import` made")
        return self


class Sizes(Section):
    """An actor from scratch (Llama architecture, untied embeddings)."""

    layers: int = Field(ge=1, le=128, description="transformer blocks")
    width: int = Field(ge=8, description="size of the residual stream; a multiple of heads")
    heads: Count = Field(description="attention heads")
    kv_heads: Count = Field(description="key-value heads; divides heads")
    mlp: Count = Field(description="inner size of the gated MLP")
    tokens: Count = Field(description="tokens of warm start")

    @model_validator(mode="after")
    def _shapes(self) -> Sizes:
        if self.width % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide width={self.width}; choose a width that is a multiple of it")
        if self.width // self.heads % 2:
            raise ValueError(f"heads: a head of {self.width // self.heads} is odd and cannot be rotated; make width / heads even")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads} does not divide heads={self.heads}; choose a divisor of it, such as 1")
        return self


class Pretrained(Section):
    """An actor that starts from a pretrained model."""

    path: str = Field(
        min_length=1,
        description="local folder in Hugging Face's layout (config.json, weights, tokenizer), or package:NAME, an installed one with a GGUF",
    )
    tokens: int = Field(ge=0, description="tokens of warm start; 0 = none")


def _actor_kind(value: Any) -> str:
    has_path = "path" in value if isinstance(value, dict) else isinstance(value, Pretrained)
    return "pretrained" if has_path else "scratch"


Actor = Annotated[Annotated[Sizes, Tag("scratch")] | Annotated[Pretrained, Tag("pretrained")], Discriminator(_actor_kind)]


class Learner(Section):
    """What the actor's learner does alike in warm start and online rounds."""

    autocast: Literal["none", "bf16"] = Field(
        description="precision of an update's passes; `ratchet tune` measures which one pays on this machine; weights stay in fp32"
    )
    max_grad_norm_ratio: float = Field(
        ge=1, description="a gradient longer than so many times max_grad_norm, or one that is not finite, is no step: it is skipped and counted"
    )
    max_skipped_share: Share = Field(description="share of a stage's optimiser steps that may be skipped before it fails, 0 to 1")


class WarmStart(Section):
    """Imitation of the demonstrations."""

    trainer: Literal["learner", "trl"] = Field(description="our learner, or TRL's SFTTrainer (slower for small models)")
    optimizer: Literal["muon", "adamw"] = Field(description="muon works on matrices, with AdamW for the rest")
    lr: float = Field(gt=0, le=1, description="peak learning rate")
    batch_tokens: Count = Field(description="tokens an optimiser step")
    observation_weight: float = Field(ge=0, le=10, description="weight of the loss on observation tokens beside that on replies")
    warmup_share: Share = Field(description="share of the steps in which the learning rate rises, 0 to 1")
    floor: Share = Field(description="the learning rate at the end as a share of lr; a model cooled down to 0 is harmed by any further step")
    max_grad_norm: float = Field(gt=0, description="gradients longer than this are scaled to it")

    @model_validator(mode="after")
    def _trl_has_ways_of_its_own(self) -> WarmStart:
        for key, way, why in (
            ("optimizer", "adamw", "which steps with AdamW"),
            ("floor", 0, "whose learning rate ends at 0"),
            ("observation_weight", 0, "which has a loss on replies only"),
        ):
            value = getattr(self, key)
            if self.trainer == "trl" and value != way:
                raise ValueError(
                    f"{key}: {value} cannot be used by trainer=trl, {why}; set warm_start.{key} to {way}, or warm_start.trainer to learner"
                )
        return self


class Round(Section):
    """One round; a mapping, so that settings of one round have a place."""

    prev: str = Field(description="key of the round before, derived from the count of rounds")
    set: dict[str, Any] = Field(
        default_factory=dict, description="settings that differ in this round alone, by section: " + ", ".join(OF_A_ROUND)
    )


class Evaluation(Section):
    """What one evaluation chooses from."""

    candidates: str = Field(description="folder of candidates, derived from the count of rounds")


class Loop(Section):
    """How rounds follow each other."""

    start_from: Literal["champion", "better", "last"] = Field(
        description="a round starts from the champion (the ratchet), from the last version, or from the better of both on `select`: a gain too "
        "small to be shown is then built upon, and promotion is decided on `confirm` all the same"
    )
    stop: Stop = Field(description="when further rounds no longer pay")


class PoolMember(Section):
    """One policy of the harvest."""

    policy: str = Field(description="expert, random, verbose (the expert with words that say nothing), or the name of an actor or of a served model")
    share: float = Field(gt=0, le=1, description="its share of the episodes; all shares sum to 1")


class Harvest(Section):
    """Episodes of many policies at the start of a round."""

    episodes: Count = Field(description="episodes a round")
    temperature: float = Field(gt=0, le=10, description="sampling temperature of the models; above 0, or every repetition is the same")
    shard: Count = Field(description="episodes a shard, the unit of work and of resume")
    pool: list[PoolMember] = Field(min_length=1, description="who plays, and how much")

    @model_validator(mode="after")
    def _shares(self) -> Harvest:
        total = sum(member.share for member in self.pool)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"pool: the shares sum to {total:.4g}; change them so that they sum to 1")
        names = [member.policy for member in self.pool]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"pool: {name} is listed twice; give it one entry with the sum of its shares")
        return self


class Label(Section):
    """Labels a step, and their validation."""

    replay_share: Share = Field(description="share of episodes that are replayed to validate outcome and observations, 0 to 1")


class Evaluate(Section):
    """How panels are played."""

    temperature: float = Field(ge=0, le=10, description="sampling temperature; 0 = the likeliest token")
    samples: Count = Field(description="episodes a task")
    shard: Count = Field(description="episodes a shard, the unit of work and of resume")

    @model_validator(mode="after")
    def _samples_differ(self) -> Evaluate:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"temperature: 0 makes all samples={self.samples} of a task the same; raise it, or set evaluate.samples to 1")
        return self


class Final(Section):
    """The last comparison, on the test panel."""

    resamples: int = Field(ge=100, description="bootstrap resamples")


class Report(Section):
    """The page."""

    episodes: int = Field(ge=0, description="whole episodes shown turn by turn")


class Settings(Section):
    """All settings; attribute names are the keys of params.yaml."""

    line: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="champions are compared and kept within a line; a plain name")
    seed: int = Field(ge=0, lt=2**31, description="seed of everything random")
    start: str = Field(
        pattern=r"^(scratch|champion|[0-9a-f]{12})$", description="scratch, champion (of the line), or a version's id (12 hex)"
    )
    approval: Literal["rule", "person"] = Field(
        description="who makes a promoted version champion of its line: the rule of `decide` alone, or after it a person (`ratchet approve`)"
    )
    env: Env = Field(description="benchmark and limits")
    prepare: Prepare = Field(description="games, panels and tokenizer")
    demonstrate: Demonstrate = Field(description="episodes to imitate")
    actors: dict[str, Actor] = Field(min_length=1, description="the first one evolves; the others are for the harvest's pool")
    served: dict[str, Served] = Field(description="models behind OpenAI-compatible servers, by names of yours, for the harvest's pool")
    learner: Learner = Field(description="what warm start and online rounds share")
    warm_start: WarmStart = Field(description="imitation")
    rounds: dict[str, Round] = Field(min_length=1, description="rounds by key; rendered from their count")
    evaluations: dict[str, Evaluation] = Field(description="evaluations by key; derived from rounds")
    last: str = Field(description="key of the last round; derived from rounds")
    loop: Loop = Field(description="how rounds follow each other")
    harvest: Harvest = Field(description="episodes of many policies")
    label: Label = Field(description="labels a step")
    check: Check = Field(description="limits of the quality suite")
    buffer: Buffer = Field(description="what a round's critic and offline update learn from")
    fit_meter: FitMeter = Field(description="the progress meter of a round (docs/meter.md); fitted where evolve_online.meter is enabled")
    fit_critic: FitCritic = Field(description="the critic of a round (docs/critic.md)")
    evolve_offline: EvolveOffline = Field(description="the update on the buffer")
    evolve_online: EvolveOnline = Field(description="online policy gradient")
    evaluate: Evaluate = Field(description="how panels are played")
    drift: Drift = Field(description="limits of what may change from version to version")
    regression: Regression = Field(description="what scheduled looks at a champion warn of")
    decide: Decide = Field(description="when a version becomes champion")
    final: Final = Field(description="the last comparison")
    report: Report = Field(description="the page")

    @model_validator(mode="after")
    def _combinations(self) -> Settings:
        _check_actors(self)
        _check_rounds(self)
        _check_amounts(self)
        check_critic(self)
        check_meter(self)
        for key in self.rounds:
            _check_round(self, key)
        return self

    def of_round(self, key: str | None) -> Settings:
        """These settings with what is set for round `key` alone."""
        own = self.rounds[key].set if key in self.rounds else {}
        return type(self).model_validate(_with(self.model_dump(), own)) if own else self

    @property
    def actor(self) -> str:
        """Name of the actor that evolves."""
        return next(iter(self.actors))


def derived(rounds: list[str], actor: str) -> dict[str, Any]:
    """The mappings `evaluations` and `last` that belong to `rounds` ("1", "2", …) and the evolving `actor`."""
    candidates = {"0": {"candidates": f"models/warm/{actor}"}}
    candidates |= {key: {"candidates": f"models/rounds/{key}/candidates"} for key in rounds}
    return {"evaluations": candidates, "last": rounds[-1]}


def _check_actors(settings: Settings) -> None:
    for section, names in (("actors", settings.actors), ("served", settings.served)):
        for name in names:
            if name in SCRIPTED or not _ACTOR_NAME.fullmatch(name):
                raise ValueError(
                    f"{section}.{name}: not a usable name; take lower-case letters, digits, - and _, starting with a letter, and not "
                    + " or ".join(SCRIPTED)
                )
    for name, actor in settings.actors.items():
        if isinstance(actor, Sizes) and settings.prepare.vocab_size is None:
            raise ValueError(f"prepare.vocab_size: null makes no tokenizer, which actors.{name} needs; give a size such as 1200")
    for name in settings.served:
        if name in settings.actors:
            raise ValueError(f"served.{name}: an actor has this name; take another one")
    known = [*SCRIPTED, *settings.actors, *settings.served]
    for place, member in enumerate(settings.harvest.pool):
        if member.policy not in known:
            near = difflib.get_close_matches(member.policy, known, n=1)
            what = f"did you mean {near[0]}?" if near else f"take one of {', '.join(known)}"
            raise ValueError(f"harvest.pool.{place}.policy: nobody is called {member.policy!r}; {what}")


def _check_rounds(settings: Settings) -> None:
    way_out = "run `ratchet render`, or give the count of rounds with `--set rounds=N`"
    keys = [str(number) for number in range(1, len(settings.rounds) + 1)]
    if list(settings.rounds) != keys:
        raise ValueError(f"rounds: the keys {', '.join(settings.rounds)} are not {', '.join(keys)} in this order; {way_out}")
    for key, item in settings.rounds.items():
        if item.prev != str(int(key) - 1):
            raise ValueError(f"rounds.{key}.prev: {item.prev!r} is not the round before; {way_out}")
    expected = derived(keys, settings.actor)
    found = {key: item.model_dump() for key, item in settings.evaluations.items()}
    if found != expected["evaluations"]:
        raise ValueError(f"evaluations: does not belong to rounds and to the first actor, {settings.actor!r}; {way_out}")
    if settings.last != expected["last"]:
        raise ValueError(f"last: {settings.last!r} is not the last of rounds, {expected['last']!r}; {way_out}")


def _check_round(settings: Settings, key: str) -> None:
    own = settings.rounds[key].set
    for name, values in own.items():
        if name not in OF_A_ROUND or not isinstance(values, dict):
            raise ValueError(f"rounds.{key}.set.{name}: is no section that one round may have of its own; those are {', '.join(OF_A_ROUND)}")
    if own:
        try:
            settings.of_round(key)
        except ValidationError as error:
            raise ValueError(f"rounds.{key}.set.{explain(error, type(settings))}") from None


def _with(values: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`values` with `own` laid over, and nothing set for single rounds any more."""
    merged = {**values, "rounds": {key: {**item, "set": {}} for key, item in values["rounds"].items()}}

    def lay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
        return {**below, **{k: lay(below[k], v) if isinstance(v, dict) and isinstance(below.get(k), dict) else v for k, v in above.items()}}

    return lay(merged, own)


def _check_amounts(settings: Settings) -> None:
    games, env = settings.prepare.games, settings.env
    for name in ("warm_start", "evolve_online"):
        size = getattr(settings, name).batch_tokens
        if size < env.max_tokens:
            raise ValueError(f"{name}.batch_tokens: {size} is below env.max_tokens={env.max_tokens}, one episode; raise it to that")
    _check_forecasts(settings)
    if settings.evolve_online.null_policy == "leave_out" and getattr(benchmark_class(env.name), "null_action", None) is None:
        raise ValueError(
            f"evolve_online.null_policy: leave_out plays a policy that does nothing, and {env.name} names no null_action, an action that does "
            "nothing; set it to keep, or give your benchmark's class one"
        )
    if settings.evolve_online.tasks > games.train:
        raise ValueError(f"evolve_online.tasks: {settings.evolve_online.tasks} is above prepare.games.train={games.train}; lower it")
    if settings.demonstrate.episodes > games.train:
        raise ValueError(
            f"demonstrate.episodes: {settings.demonstrate.episodes} is above prepare.games.train={games.train}, so games would be played "
            "twice with the same outcome; lower it or raise the games"
        )
    spent = settings.decide.alpha / len(settings.rounds)
    if spent * settings.decide.resamples < 1:
        raise ValueError(
            f"decide.resamples: {settings.decide.resamples} cannot resolve alpha / rounds = {spent:.2g}; raise it to {int(1 / spent) + 1}"
        )


def _check_forecasts(settings: Settings) -> None:
    """That the longest episode with its forecasts is within the budget, with the shortest PLAN that there is; when the round begins
    it is checked with the model's own."""
    own, env, size = settings.evolve_online.forecast, settings.env, settings.evolve_online.batch_tokens
    most = forecast_tokens(own, env.max_tokens, env.max_steps, env.max_reply_tokens, plan=SHORTEST_PLAN)
    if own.weight and most > size:
        raise ValueError(
            f"evolve_online.batch_tokens: {size} is below {most}, one episode of env.max_tokens={env.max_tokens} with its forecasts; raise it "
            f"to that, lower evolve_online.forecast.prefixes (now {own.prefixes}) or horizon, or set evolve_online.forecast.packing to separate"
        )


def settings_type(values: Any) -> type[Settings]:
    """`Settings` with `env.options` of the type that the benchmark `env.name` of plain values has.

    Raises RatchetError for a name that is none; where there is no text at that place, it is left to the type to refuse it.
    """
    env = values.get("env") if isinstance(values, dict) else None
    name = env.get("name") if isinstance(env, dict) else None
    return _with_options(benchmark_class(name).Options) if isinstance(name, str) else Settings


@cache
def _with_options(options: type[Section]) -> type[Settings]:
    def again(model: type[Section], key: str) -> Any:
        return Field(description=model.model_fields[key].description)

    env = create_model("Env", __base__=Env, __doc__=Env.__doc__, options=(options, again(Env, "options")))
    return create_model("Settings", __base__=Settings, __doc__=Settings.__doc__, env=(env, again(Settings, "env")))


def parse(values: Any, where: str = "params.yaml", folder: Path | None = None) -> Settings:
    """Settings from plain values. Raises RatchetError, one line that names the dotted key; `where` says who gave it.

    An environment of one's own is also looked for in `folder`, and has to be the one that `env.code` was made of.
    """
    if not isinstance(values, dict):
        raise RatchetError(f"{where}: holds {type(values).__name__} instead of settings; write `key: value` lines as in params.yaml")
    if folder is not None:
        look_in(folder)
    try:
        model = settings_type(values)
    except RatchetError as error:
        raise RatchetError(f"{where}: {error}") from error
    try:
        settings = model.model_validate(values)
    except ValidationError as error:
        raise RatchetError(f"{where}: {explain(error, model)}") from None
    if folder is not None and settings.env.code != own_code(settings.env.name, folder):
        raise RatchetError(f"{where}: env.code: {settings.env.code} is not the hash of {settings.env.name} as it is now; run `ratchet render`")
    return settings


def load(path: Path = Path("params.yaml")) -> Settings:
    """The settings of a workspace. Raises RatchetError for a missing or broken file and for whatever cannot work."""
    return parse(read_yaml(path), str(path), path.absolute().parent)


BESIDE = ("workers", "players", "alternate")
"""Of `env`: who plays beside whom, which changes no byte of what is made."""


def params_hash(settings: Settings) -> str:
    """12 digits of all settings by which something is made; equal wherever the same comes out."""
    values = settings.model_dump(mode="json")
    for name in BESIDE:
        del values["env"][name]
    return sha256_json(values)[:12]


def json_schema(name: str = "alfworld") -> dict[str, Any]:
    """JSON Schema of params.yaml with the options of the benchmark `name`, for editors and pages."""
    return settings_type({"env": {"name": name}}).model_json_schema()


def render_params(base: dict[str, Any], preset: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """Complete params from defaults, a preset's differences and `--set` texts; see ratchet.rendering."""
    from ratchet.rendering import render_params as render

    return render(base, preset, sets)


def dump_params(params: dict[str, Any]) -> str:
    """Stable YAML of params, keys in their order, round keys quoted."""
    from ratchet.yaml_files import dump_yaml

    return dump_yaml(params)
