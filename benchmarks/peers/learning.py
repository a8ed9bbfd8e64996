"""Learning on real games: the warm start that both sides begin from, our side's iterations, and the evaluation of both."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.make import ONE_MILLION, make_world
from benchmarks.peers.ours import STEP_LIMIT_S, learner_of
from benchmarks.peers.spec import Evaluation, Training, WarmStart
from benchmarks.peers.world import drawn_tasks, tasks_of
from ratchet.engines.local import LocalEngine
from ratchet.envs.alfworld.expert import AlfworldExpert
from ratchet.envs.alfworld.games import game_task, generate_games
from ratchet.envs.alfworld.storage import read_games, write_games
from ratchet.envs.pool import EnvPool
from ratchet.episodes.files import write_table
from ratchet.episodes.template import Template, load_template
from ratchet.learners.imitation import ImitationSettings, imitate
from ratchet.learners.online import credited, learn
from ratchet.models.build import load_model, save_model
from ratchet.policies.language_model import LanguageModelPolicy
from ratchet.policies.scripted import ScriptedPolicy
from ratchet.rollout.play import Job, play
from tasks.warm_start import demonstrations

FACTORY = "ratchet.envs.alfworld.benchmark:make"
HELD_OUT = "select"
CONTEXT = 2048


def pool_of(folder: Path, split: str, admissible: bool = False) -> EnvPool:
    return EnvPool(FACTORY, {"folder": str(folder), "splits": [split], "engine": "compiled"}, 1, STEP_LIMIT_S, admissible)


def warm_start(spec: WarmStart) -> dict[str, Any]:
    """Writes games, tokenizer, demonstrations and the warm model; returns what was learned from."""
    folder = Path(spec.folder)
    make_world(folder, tasks=spec.train, shape=ONE_MILLION, context=CONTEXT, rooms=spec.rooms)
    write_games(folder / f"{HELD_OUT}.parquet", generate_games(HELD_OUT, spec.held_out, 1, spec.rooms))
    template = load_template(folder / "tokenizer")
    expert = ScriptedPolicy(lambda seed, episode_id: AlfworldExpert(), policy_id="expert", version="expert", action_format="plain")
    with pool_of(folder, "train", admissible=True) as pool:
        episodes, steps = play([Job(task, 1) for task in tasks_of(folder)], expert, pool, max_steps=2 * spec.turns, rows=256)
    write_table(folder / "demonstrations" / "episodes.parquet", "episodes", episodes)
    write_table(folder / "demonstrations" / "steps.parquet", "steps", steps)
    sequences = demonstrations(folder / "demonstrations", template, CONTEXT)
    settings = ImitationSettings(
        tokens=spec.tokens,
        batch_tokens=2048,
        lr=0.002,
        optimizer="muon",
        observation_weight=0.3,
        warmup_share=0.02,
        floor=0.3,
        max_grad_norm=1.0,
        seed=1,
    )
    apart = min(64, len(sequences) // 10)  # for the held-out loss
    with tempfile.TemporaryDirectory() as scratch:
        model, result = imitate(load_model(folder / "model"), sequences[apart:], sequences[:apart], settings, scratch=Path(scratch))
    save_model(model, folder / "tokenizer", folder / "warm", {"stage": "benchmark"})
    return {"demonstrations": len(sequences), "tokens": result.tokens, "held_out_loss": result.held_out_loss}


def policy_of(model: Any, template: Template, rows: int, turns: int, max_reply: int, temperature: float) -> LanguageModelPolicy:
    """Of a budget that no episode reaches: turns end it, as in TRL's side."""
    engine = LocalEngine(model, slots=rows, length=CONTEXT, end=template.ends, pad=template.pad)
    return LanguageModelPolicy(
        engine, template, policy_id="actor", version="0", temperature=temperature, max_tokens=CONTEXT, max_reply_tokens=max_reply
    )


def train(spec: Training) -> dict[str, Any]:
    """Our GRPO iterations; the model is saved in `spec.folder/spec.out`."""
    folder = Path(spec.folder)
    tasks, template = tasks_of(folder), load_template(folder / "tokenizer")
    learner = learner_of(load_model(folder / spec.start), spec)
    success, began = [], time.perf_counter()
    with pool_of(folder, "train") as pool:
        for iteration in range(spec.iterations):
            policy = policy_of(learner.model, template, spec.episodes, spec.turns, spec.write, 1.0)
            jobs = [
                Job(task, spec.seed, sample, 1, iteration, f"{iteration}/{task.task_id}")
                for task in drawn_tasks(tasks, spec.tasks, spec.seed, iteration)
                for sample in range(spec.samples)
            ]
            episodes, steps = play(jobs, policy, pool, max_steps=spec.turns, rows=spec.episodes, max_invalid=spec.max_invalid)
            learn(learner, credited(episodes, steps, credit="grpo", reward="solved"), steps=spec.steps, lr=spec.lr, reference=None)
            success.append(float(np.mean(episodes["solved"].to_pylist())))
    seconds = time.perf_counter() - began
    save_model(learner.model, folder / "tokenizer", folder / spec.out, {"stage": "benchmark"})
    return {"success": success, "seconds": seconds}


def evaluate(spec: Evaluation) -> dict[str, Any]:
    """Success of a model on the held-out games, greedy, one episode each; whose model it is plays no part."""
    folder = Path(spec.folder)
    tasks = [game_task(game, HELD_OUT) for game in read_games(folder / f"{HELD_OUT}.parquet").values()]
    template = load_template(folder / "tokenizer")
    rows = min(128, len(tasks))
    policy = policy_of(load_model(folder / spec.model), template, rows, spec.turns, spec.max_reply, 0.0)
    with pool_of(folder, HELD_OUT) as pool:
        episodes, _ = play([Job(task, 1) for task in tasks], policy, pool, max_steps=spec.turns, rows=rows, max_invalid=spec.max_invalid)
    return {"success": float(np.mean(episodes["solved"].to_pylist())), "games": len(tasks)}
