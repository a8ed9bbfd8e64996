"""Short real measurements on this machine for `ratchet plan`: games, expert, and each actor at its batch, playing and learning."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.quiet import STAGE
from ratchet.envs.benchmarks import benchmark, open_pool
from ratchet.episodes.files import write_table
from ratchet.rollout.play import Job, play
from ratchet.settings import Pretrained, Settings

GAMES = 48  # of the training split; the other splits get a few
TURNS = 2  # of each episode that an untrained actor plays
ENOUGH_S = 2.0  # of updates
UPDATES = 4  # at most


@dataclass(frozen=True)
class ActorSpeed:
    """`write_s`: seconds a generated token at the actor's batch, environment and reading included. `train_s`: seconds a token of an
    update. `bytes` of its weights; `token_bytes` of Parquet a generated token."""

    parameters: int
    write_s: float
    train_s: float
    bytes: int
    token_bytes: float
    tokens: float  # of an expert's episode in the actor's tokenizer, all of them
    reply_tokens: float  # of one reply


@dataclass(frozen=True)
class Speed:
    """Seconds a game and an expert's episode, an expert's turns, bytes a game and a turn of Parquet, seconds that each kind of stage
    needs to start, and each actor. `has_expert` is False where a random walk stood in for it."""

    game_s: float
    game_bytes: float
    expert_s: float
    turns: float
    turn_bytes: float
    start_s: float
    suite_s: float
    has_expert: bool
    actors: dict[str, ActorSpeed]


def measure(settings: Settings, scratch: Path, say: Any) -> Speed:
    """All of it, in `scratch`; `say` gets a line before each part. Raises RatchetError where the settings cannot run here."""
    say("how long a stage takes to start")
    start_s, suite_s = _import_s("torch, transformers, pyarrow"), _import_s("great_expectations")
    say(f"games and an expert of {settings.env.name}")
    played = demonstrate(settings, scratch)
    actors = {}
    for name in settings.actors:
        say(f"actor {name}: plays and learns")
        actors[name] = _actor(settings, name, scratch, played.jobs)
    return Speed(
        game_s=played.game_s,
        game_bytes=_size(scratch / "games") / played.games,
        expert_s=played.expert_s,
        turns=played.turns / len(played.jobs),
        turn_bytes=_size(scratch / "demonstrations") / played.turns,
        start_s=start_s,
        suite_s=suite_s,
        has_expert=played.has_expert,
        actors=actors,
    )


@dataclass(frozen=True)
class Played:
    """What an expert (or a random walk in its place) has played in `scratch`: seconds a game and an episode, counts of games and turns."""

    jobs: list[Job]
    game_s: float
    expert_s: float
    games: int
    turns: int
    has_expert: bool


def demonstrate(settings: Settings, scratch: Path) -> Played:
    """Makes games in `scratch`/games and lets the expert play into `scratch`/demonstrations, as if every episode were solved."""
    from tasks.rollouts import expert_or_random

    counts = {**dict.fromkeys(settings.prepare.games.model_dump(), 4), "train": min(GAMES, settings.prepare.games.train)}
    games = scratch / "games"
    games.mkdir()
    began = time.monotonic()
    tasks = benchmark(settings.env.name).prepare(games, settings.env, counts, settings.seed)
    made = sum(map(len, tasks.values()))
    game_s = (time.monotonic() - began) / made
    policy, no_expert = expert_or_random(settings, games)
    jobs = [Job(task, settings.seed) for task in tasks["train"][:GAMES]]
    with open_pool(games, settings.env, ["train"], admissible=policy.needs_admissible) as pool:
        play(jobs[:2], policy, pool, max_steps=2, rows=2)  # worker processes start here
        began = time.monotonic()
        episodes, steps = play(jobs, policy, pool, max_steps=settings.env.max_steps, rows=256)
        expert_s = (time.monotonic() - began) / len(jobs)
    solved = episodes.set_column(episodes.schema.get_field_index("solved"), "solved", pa.array([True] * episodes.num_rows))
    for kind, table in (("episodes", solved), ("steps", steps)):
        write_table(scratch / "demonstrations" / f"{kind}.parquet", kind, table)
    return Played(jobs, game_s, expert_s, made, steps.num_rows, no_expert is None)


def _actor(settings: Settings, name: str, scratch: Path, jobs: list[Job]) -> ActorSpeed:
    from ratchet.models.build import save_model

    source, model, sequences = untrained(settings, name, scratch)
    folder = scratch / f"model-{name}"
    save_model(model, source, folder, {"stage": "plan", "parents": []})
    write_s, token_bytes = _play(settings, name, folder, model, scratch, jobs)
    return ActorSpeed(
        parameters=sum(one.numel() for one in model.parameters()),
        write_s=write_s,
        train_s=_train_s(settings, model, sequences),
        bytes=_size(folder),
        token_bytes=token_bytes,
        tokens=sum(len(one.ids) for one in sequences) / len(sequences),
        reply_tokens=sum(one.n_reply for one in sequences) / sum(len(one.advantages) for one in sequences),
    )


def untrained(settings: Settings, name: str, scratch: Path) -> tuple[Path, Any, list[Any]]:
    """The actor `name` before any training, after `demonstrate`: the folder of its tokenizer, the model, and what it would imitate."""
    from ratchet.episodes.template import load_template
    from ratchet.models.pretrained import base_folder
    from tasks.warm_start import demonstrations, model_of

    actor = settings.actors[name]
    source = base_folder(actor.path, scratch / f"base-{name}") if isinstance(actor, Pretrained) else _tokenizer(settings, scratch)
    template = load_template(source, settings.env.action_format)
    sequences = demonstrations(scratch / "demonstrations", template, settings.env.max_tokens)
    return source, model_of(settings, name, source, template), sequences


def _tokenizer(settings: Settings, scratch: Path) -> Path:
    from ratchet.episodes.files import read_table
    from ratchet.episodes.tokenizer import train_tokenizer

    folder = scratch / "tokenizer"
    if not folder.is_dir():
        steps = read_table(scratch / "demonstrations" / "steps.parquet", "steps", ["observation", "reply"])
        train_tokenizer(steps["observation"].to_pylist() + steps["reply"].to_pylist(), settings.prepare.vocab_size, folder)
    return folder


def _play(settings: Settings, name: str, folder: Path, model: Any, scratch: Path, jobs: list[Job]) -> tuple[float, float]:
    """(seconds, Parquet bytes) a generated token, at the batch that the actor plays most at."""
    from tasks.rollouts import model_policy

    rows = settings.evolve_online.shard if name == settings.actor else settings.harvest.shard
    policy = model_policy(folder, settings, policy_id=name, rows=rows, temperature=1.0, model=model)
    batch = [Job(jobs[number % len(jobs)].task, settings.seed, sample=number) for number in range(rows)]
    with open_pool(scratch / "games", settings.env, ["train"], admissible=False) as pool:
        play(batch[:1], policy, pool, max_steps=1, rows=1)
        began = time.monotonic()
        episodes, steps = play(batch, policy, pool, max_steps=TURNS, rows=rows)
        seconds = time.monotonic() - began
    write_table(scratch / f"played-{name}.parquet", "steps", steps)
    written = max(sum(episodes["n_tokens"].to_pylist()), 1)
    return seconds / written, (scratch / f"played-{name}.parquet").stat().st_size / written


def _train_s(settings: Settings, model: Any, sequences: list[Any]) -> float:
    from ratchet.learners.actor import ActorLearner
    from ratchet.learners.imitation import batches
    from ratchet.losses.likelihood import Likelihood
    from ratchet.losses.observation import ObservationLikelihood

    warm = settings.warm_start
    learner = ActorLearner(
        model,
        [Likelihood(), ObservationLikelihood(warm.observation_weight)],
        optimizer=warm.optimizer,
        batch_tokens=warm.batch_tokens,
        max_grad_norm=warm.max_grad_norm,
        autocast=settings.learner.autocast,
    )
    tokens = 0
    began = time.monotonic()
    for number, batch in enumerate(islice(batches(sequences, warm.batch_tokens, settings.seed), UPDATES)):
        learner.update(batch, warm.lr)
        if number == 0 and time.monotonic() - began < ENOUGH_S:
            began = time.monotonic()  # the first update makes what the others use again
            continue
        tokens += sum(len(one.ids) for one in batch)
        if time.monotonic() - began > ENOUGH_S:
            break
    return (time.monotonic() - began) / tokens


def _import_s(names: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {names}"], env={**os.environ, **STAGE}, check=False, capture_output=True, timeout=300)
    return time.monotonic() - began


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
