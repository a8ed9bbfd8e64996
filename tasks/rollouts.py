"""What the stages that play episodes share: policies from folders, shards that survive a kill, the limit on errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ratchet.envs.benchmarks import benchmark
from ratchet.envs.pool import EnvPool
from ratchet.episodes.files import table_of
from ratchet.errors import RatchetError
from ratchet.policies.base import Policy
from ratchet.policies.scripted import Player, ScriptedPolicy
from ratchet.policies.served import FAILED, ServedPolicy
from ratchet.policies.served_settings import Served
from ratchet.policies.slips import SlippingPlayer
from ratchet.rollout.play import Job, OnEpisode, Tables, episode_id, play_alternating
from ratchet.rollout.players import torch_threads
from ratchet.settings import Settings
from tasks.common import Progress, Stage
from tasks.parts import drop_part, read_part, write_part

if TYPE_CHECKING:
    from ratchet.policies.language_model import ModelSpec

VERBOSITY = 12  # words


def expert_policy(settings: Settings, games: Path, slip_rate: float = 0.0) -> Policy:
    """The benchmark's expert on what `prepare` wrote into `games`; with a `slip_rate` it now and then names the wrong thing and
    has to recover. Raises RatchetError where the benchmark has none."""
    one = benchmark(settings.env.name)
    expert = one.expert(games)  # where there is none, that is said before anything is played
    listed = slip_rate > 0 or getattr(expert, "needs_admissible", True)

    def player(seed: int, episode_id: str) -> Player:
        return SlippingPlayer(one.expert(games), slip_rate, seed, episode_id) if slip_rate else one.expert(games)

    form = settings.env.action_format
    return ScriptedPolicy(player, policy_id="expert", version="expert", action_format=form, needs_admissible=listed)


def verbose_policy(settings: Settings, games: Path) -> Policy:
    """The expert, with a dozen words on average that say nothing before each action: as good, and further from its end in tokens."""
    from ratchet.envs.proving_ground.players import Verbose

    one = benchmark(settings.env.name)
    listed = getattr(one.expert(games), "needs_admissible", True)

    def player(seed: int, episode_id: str) -> Player:
        return Verbose(one.expert(games), VERBOSITY)

    return ScriptedPolicy(player, policy_id="verbose", version="verbose", action_format=settings.env.action_format, needs_admissible=listed)


def expert_or_random(settings: Settings, games: Path) -> tuple[Policy, str | None]:
    """The expert; where the benchmark has none, a random walk and what was said about the expert."""
    try:
        return expert_policy(settings, games), None
    except RatchetError as reason:
        return random_policy(settings), str(reason)


def random_policy(settings: Settings) -> Policy:
    from ratchet.policies.random_valid import RandomPolicy

    return ScriptedPolicy(RandomPolicy, policy_id="random", version="random", action_format=settings.env.action_format)


def model_policy(folder: Path, settings: Settings, *, policy_id: str, rows: int, temperature: float, model: Any = None) -> Policy:
    """A language model of a folder (or an already loaded `model` with that folder's tokenizer) on `rows` rows; of a folder with a
    critic beside the weights, one that lets it choose among replies."""
    from ratchet.models.build import RERANK

    spec = model_spec(folder, settings, policy_id=policy_id, rows=rows, temperature=temperature)
    if model is None and (folder / RERANK).is_file():
        from ratchet.critic.rerank import reranking_policy

        return reranking_policy(spec)
    policy = spec.policy(model)
    policy.is_learning = model is not None
    return policy


def model_spec(folder: Path, settings: Settings, *, policy_id: str, rows: int, temperature: float) -> ModelSpec:
    """What makes the policy of a folder. Raises RatchetError where its version learned another action format than `env.action_format`."""
    from ratchet.models.build import card_of
    from ratchet.policies.language_model import ModelSpec

    env, card = settings.env, card_of(folder)
    learned = card.get("action_format", env.action_format)
    if learned != env.action_format:
        raise RatchetError(f"{folder}: version {card['version']} learned to write actions as {learned}; set env.action_format to {learned}")
    return ModelSpec(folder, policy_id, card["version"], env.action_format, rows, temperature, env.max_tokens, env.max_reply_tokens)


@contextmanager
def served_policy(stage: Stage, name: str, own: Served, temperature: float) -> Iterator[ServedPolicy]:
    """The served model `name`. Until the stage is done, answers are kept in its scratch folder: none is asked for twice."""
    from ratchet.episodes.template import load_template

    env = stage.settings.env
    policy = ServedPolicy(
        name,
        own,
        temperature=temperature,
        max_tokens=env.max_tokens,
        max_reply_tokens=env.max_reply_tokens,
        max_error_share=env.max_error_share,
        action_format=env.action_format,
        template=load_template(stage.path(own.tokenizer), env.action_format) if own.tokenizer is not None else None,
        journal=stage.scratch / "served" / f"{name}.jsonl",
    )
    try:
        yield policy
    finally:
        policy.close()


def failed_actions(steps: pa.Table) -> int:
    """Steps whose request to a served model failed for good."""
    return sum(version.endswith(FAILED) for version in steps["policy_version"].to_pylist())


def check_failures(stage: Stage, name: str, steps: pa.Table) -> None:
    """Raises RatchetError where the share of failed actions is above the limit; what was answered is kept for the next try."""
    failed, limit = failed_actions(steps), stage.settings.env.max_error_share
    if failed > limit * steps.num_rows:
        raise RatchetError(
            f"{stage.title} {name}: {failed} of {steps.num_rows} actions of a shard failed, above env.max_error_share={limit}; "
            f"see to served.{name}.url, then go on with `ratchet run --resume ID`, which asks for these alone"
        )


def play_shards(
    stage: Stage,
    name: str,
    jobs: Sequence[Job],
    policy: Policy,
    pool: EnvPool,
    *,
    shard: int,
    rows: int | None = None,
    accept: Callable[[pa.Table], None] = lambda steps: None,
) -> tuple[pa.Table, pa.Table]:
    """Plays `jobs` in shards of `shard` episodes and returns (episodes, steps).

    A model plays `env.players` shards side by side, or with `env.alternate` two in turns. Each finished shard is a part in the stage's scratch folder
    (tasks/parts.py); after a kill only the missing ones are played. A shard whose steps `accept` raises about is not kept. Raises
    RatchetError where more than `env.max_error_share` of the episodes ended as errors; shards with errors are not kept then.
    """
    progress = Progress(f"{stage.title} {name}", len(jobs), "episodes")
    parts: dict[int, Tables] = {}
    missing: dict[int, Sequence[Job]] = {}
    done = solved = 0

    def ended(episode: dict[str, Any]) -> None:
        nonlocal done, solved
        done, solved = done + 1, solved + episode["solved"]
        progress(done, f"{100 * solved / done:.1f} % solved")

    def base(number: int) -> Path:
        return stage.scratch / "parts" / f"{name}-{number:05d}"

    for number, start in enumerate(range(0, len(jobs), shard)):
        chosen = jobs[start : start + shard]
        part = read_part(base(number), [episode_id(job, policy.policy_id) for job in chosen])
        if part is None:
            missing[number] = chosen
            continue
        parts[number] = part
        for row in part[0].select(["solved"]).to_pylist():
            progress.found(1)
            ended(row)
    env, numbers = stage.settings.env, list(missing)
    limits = {"max_steps": env.max_steps, "max_invalid": env.max_invalid, "rows": rows or shard}
    for place, (episodes, steps) in _played(stage, list(missing.values()), policy, pool, limits, ended):
        accept(steps)
        parts[numbers[place]] = write_part(base(numbers[place]), episodes, steps)
        stage.fault("part")
    if not parts:
        return table_of("episodes", []), table_of("steps", [])
    tables = [parts[number] for number in sorted(parts)]
    episodes, steps = pa.concat_tables([e for e, _ in tables]), pa.concat_tables([s for _, s in tables])
    try:
        check_errors(stage, name, episodes)
    except RatchetError:
        for number, (played, _) in parts.items():
            if played["error"].null_count < played.num_rows:
                drop_part(base(number))
        raise
    return episodes, steps


def _played(
    stage: Stage, shards: list[Sequence[Job]], policy: Policy, pool: EnvPool, limits: dict[str, Any], on_episode: OnEpisode
) -> Iterator[tuple[int, Tables]]:
    """(place of the shard, its tables) as they are done: by players, or here."""
    env = stage.settings.env
    spec = getattr(policy, "spec", None)
    if spec is not None and env.players > 1 and len(shards) > 1:
        from ratchet.models.build import write_weights
        from ratchet.policies.language_model import LanguageModelPolicy

        assert isinstance(policy, LanguageModelPolicy)
        weights = stage.scratch / "players" / "weights.safetensors" if policy.is_learning else None
        if weights is not None:
            write_weights(policy.engine.model, weights)
        spec = replace(spec, version=policy.version, weights=weights)
        yield from stage.players.play(shards, spec, pool, limits, on_episode)
        return
    twin = getattr(policy, "twin", None) if env.alternate and len(shards) > 1 else None
    policies = [policy] if twin is None else [policy, twin()]
    with torch_threads(env.threads if spec is not None else None):
        yield from play_alternating(shards, policies, pool, **limits, on_episode=on_episode)


def check_errors(stage: Stage, name: str, episodes: pa.Table) -> None:
    """Raises RatchetError where the share of errors is above the limit."""
    errors = [error for error in episodes["error"].to_pylist() if error is not None]
    limit = stage.settings.env.max_error_share
    if len(errors) > limit * episodes.num_rows:
        raise RatchetError(
            f"{stage.title} {name}: {len(errors)} of {episodes.num_rows} episodes ended as errors, above env.max_error_share={limit} "
            f"(the first: {errors[0]}); mend the environment or raise the limit, then go on with `ratchet run --resume ID`, which plays "
            "the shards with errors again"
        )


def keyed_choice(items: Sequence[Any], count: int, *key: int) -> list[Any]:
    """At most `count` different items in an order that depends on `key` alone; fewer where there are no more, never one twice."""
    order = np.random.default_rng(key).permutation(len(items))
    return [items[index] for index in order[:count]]


def share_counts(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers that sum to `total`, by largest remainder."""
    exact = [share * total for share in shares]
    counts = [int(value) for value in exact]
    order = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for index in order[: total - sum(counts)]:
        counts[index] += 1
    return counts
