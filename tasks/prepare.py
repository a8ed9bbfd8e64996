"""Games of every split, the fixed panels, and the tokenizer of the models from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratchet.envs.base import Task
from ratchet.envs.benchmarks import benchmark, open_pool
from ratchet.episodes.tokenizer import train_tokenizer
from ratchet.evaluation.panels import make_panel, write_panel
from ratchet.files import write_json
from ratchet.rollout.play import Job, play
from ratchet.settings import Settings
from tasks.common import SKIPPED, Stage, main, say
from tasks.rollouts import expert_or_random

TOKENIZER_GAMES = 2000  # an expert's episodes on so many training games, or as many as it demonstrates, are the tokenizer's text


def run(stage: Stage) -> None:
    """Writes data/games, data/panels and models/tokenizer."""
    settings = stage.settings
    games = stage.out("data/games")
    games.mkdir(exist_ok=True)
    chosen_env = settings.env.model_dump(mode="json", include={"name", "options", "code"})
    write_json(games / "environment.json", chosen_env)  # whose games these are, also where it has nothing to write itself
    tasks = benchmark(settings.env.name).prepare(games, settings.env, settings.prepare.games.model_dump(), settings.seed)
    say(f"prepare: {', '.join(f'{len(chosen)} {split}' for split, chosen in tasks.items())} games")
    hashes = {}
    for split, chosen in tasks.items():
        panel = make_panel(split, chosen)
        write_panel(stage.out(f"data/panels/{split}.json"), panel)
        hashes[split] = panel.hash
    size = _tokenizer(stage, games, tasks["train"])
    stage.metrics({"games": {split: len(chosen) for split, chosen in tasks.items()}, "vocab_size": size, "panels": hashes})
    stage.finish()


def _tokenizer(stage: Stage, games: Path, train: Sequence[Task]) -> int | None:
    """Makes the tokenizer of from-scratch actors and returns its size, None where the settings want none."""
    settings = stage.settings
    if settings.prepare.vocab_size is None:
        write_json(stage.out("models/tokenizer") / SKIPPED, {"skipped": "prepare.vocab_size is null: no actor is from scratch"})
        return None
    speaker, no_expert = expert_or_random(settings, games)
    if no_expert:
        say(f"prepare: {no_expert}; the tokenizer is made of random episodes")
    with open_pool(games, settings.env, ["train"], admissible=speaker.needs_admissible) as pool:
        jobs = [Job(task, settings.seed) for task in train[: tokenizer_games(settings)]]
        _, steps = play(jobs, speaker, pool, max_steps=settings.env.max_steps, rows=256)
    texts = steps["observation"].to_pylist() + steps["reply"].to_pylist()
    words = getattr(benchmark(settings.env.name), "words", ())
    size = train_tokenizer(texts, settings.prepare.vocab_size, stage.out("models/tokenizer"), words)
    say(f"prepare: a tokenizer of {size} tokens from {len(jobs)} episodes")
    return size


def tokenizer_games(settings: Settings) -> int:
    """The most training games whose episodes are the tokenizer's text."""
    return min(TOKENIZER_GAMES, settings.demonstrate.episodes or TOKENIZER_GAMES)


if __name__ == "__main__":
    main("prepare", run)
