"""Trains a meter: likelihood of the answers, then the prediction reward on episodes that the first stage has not seen (methods §3).

The two stages are TRL's trainers. `learner` does the first one in our own learner instead, with all questions of an episode as branches of
one pass: the same loss at a fraction of the cost where episodes have many steps.

Legend: P prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.episodes.template import Template
from ratchet.learners.batches import FORECAST, PROMPT, Branch, Micro, Sequence
from ratchet.learners.trl_training import train
from ratchet.meter.answer import Grammar
from ratchet.meter.labels import Labelled, balanced
from ratchet.meter.read import Reading
from ratchet.meter.reward import prediction_reward
from ratchet.models import attention
from ratchet.rollout.noise import episode_key, uniforms

IGNORED = -100
Progress = Callable[[int, int, dict[str, Any]], None]


def _silent(done: int, total: int, point: dict[str, Any]) -> None:
    """No progress is told."""


@dataclass(frozen=True)
class Example:
    """One prefix with its label: `value` as in `Labelled.values`."""

    ids: np.ndarray  # int64, the prefix up to where the question goes on
    value: int | None
    episode: int  # index of its episode
    point: int


def examples_of(readings: Seq[Reading], labels: Seq[Labelled], prefixes: int | str, seed: int) -> list[Example]:
    """All prefixes that fit, or so many of each episode, drawn by seed and episode."""
    out = []
    for number, (reading, label) in enumerate(zip(readings, labels, strict=True)):
        steps = np.flatnonzero(reading.points >= 0)
        if isinstance(prefixes, int) and prefixes < len(steps):
            drawn = np.argsort(uniforms(episode_key(seed, reading.episode_id, "meter prefixes"), steps), kind="stable")
            steps = np.sort(steps[drawn[:prefixes]])
        for t in steps:
            point = int(reading.points[t])
            out.append(Example(reading.ids[: point + 1], label.values[t], number, point))
    return out


def chosen(examples: Seq[Example], most: int | None, balance: bool, seed: int) -> list[Example]:
    """At most `most` of them in an order of the seed's; balanced, both answers are equally often what is right."""
    flags = [one.value is not None for one in examples]
    order = balanced(flags, seed) if balance else np.random.default_rng(seed).permutation(len(examples))
    return [examples[index] for index in order[:most]]


@dataclass(frozen=True)
class Sft:
    epochs: int
    lr: float
    batch: int  # prefixes an optimiser step
    seed: int
    autocast: str = "none"
    balance: bool = True  # classes weigh the same


@dataclass(frozen=True)
class Rl:
    steps: int
    lr: float
    prompts: int  # prefixes an optimiser step
    samples: int
    max_tokens: int
    temperature: float
    seed: int


def sft_with_trl(
    model: Any, template: Template, grammar: Grammar, examples: Seq[Example], own: Sft, *, scratch: Path, progress: Progress = _silent
) -> list[dict[str, float]]:
    """TRL's SFTTrainer over prefix, question and answer, the loss on the answer alone; trains `model` and returns the curve."""
    import torch
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    if not examples or not own.epochs:
        return []
    rows = []
    for one in examples:
        asked, answer = [*one.ids.tolist(), *grammar.question], grammar.ids(one.value)
        rows.append({"input_ids": [*asked, *answer], "labels": [IGNORED] * len(asked) + answer})
    steps = -(-len(rows) // own.batch) * own.epochs
    config = SFTConfig(
        output_dir=str(scratch / "sft"),
        per_device_train_batch_size=own.batch,
        num_train_epochs=own.epochs,
        learning_rate=own.lr,
        lr_scheduler_type="linear",
        weight_decay=0.0,
        max_grad_norm=1.0,
        seed=own.seed,
        logging_steps=max(1, steps // 20),
        completion_only_loss=True,
        max_length=None,
        report_to="none",
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        bf16=own.autocast == "bf16",
        activation_checkpointing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        disable_tqdm=True,
    )
    with _for_trl(model):
        trainer = SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=template.tokenizer)
        return _trained(trainer, "loss", progress)


def sft_with_learner(
    model: Any, grammar: Grammar, readings: Seq[Reading], examples: Seq[Example], own: Sft, *, batch_tokens: int, progress: Progress = _silent
) -> tuple[Any, list[dict[str, float]]]:
    """The same loss by our learner: an episode's questions are branches of its one pass. Classes are balanced by weights."""
    from ratchet.learners.actor import ActorLearner
    from ratchet.learners.optimizers import schedule

    if not examples or not own.epochs:
        return model, []
    learner = ActorLearner(model, [AnswerLikelihood()], optimizer="adamw", batch_tokens=batch_tokens, max_grad_norm=1.0, autocast=own.autocast)
    sequences = _sequences(grammar, readings, examples, own.balance)
    each = max(1, round(own.batch * len(sequences) / len(examples)))  # episodes an optimiser step
    total = -(-len(sequences) // each) * own.epochs
    curve: list[dict[str, float]] = []
    done = 0
    for epoch in range(own.epochs):
        order = np.random.default_rng([own.seed, epoch]).permutation(len(sequences))
        for start in range(0, len(order), each):
            lr = own.lr * schedule(done / total, 0.05, 0.0)
            update = learner.update([sequences[index] for index in order[start : start + each]], lr)
            done += 1
            if done % max(1, total // 20) == 0 or done == total:
                curve.append({"step": done, "loss": update.metrics["answer"]})
                progress(done, total, curve[-1])
    return learner.model, curve


class AnswerLikelihood:
    """−mean log p over the answers' tokens, weighted; weights stand in numerator and denominator, since they balance classes."""

    name, weight, roles = "answer", 1.0, frozenset({FORECAST})

    def wants(self, one: Sequence) -> bool:
        return bool(one.branches)

    def denominator(self, batch: Seq[Sequence]) -> float:
        return float(sum(branch.weight * (branch.role == FORECAST).sum() for one in batch for branch in one.branches))

    def numerator(self, logp: Any, micro: Micro) -> tuple[Any, dict[str, Any]]:
        mine = micro.role == FORECAST
        return -(logp[mine] * micro.weight[mine]).sum(), {}


def class_weights(examples: Seq[Example], balance: bool) -> list[float]:
    """Weights of an example that cannot be completed and of one that can; with `balance` both classes weigh the same."""
    count = [sum(one.value is None for one in examples), sum(one.value is not None for one in examples)]
    return [len(examples) / (2 * number) if number else 0.0 for number in count] if balance else [1.0, 1.0]


def _sequences(grammar: Grammar, readings: Seq[Reading], examples: Seq[Example], balance: bool) -> list[Sequence]:
    """An episode each, up to its last asked point, its questions with their answers as branches."""
    weight = class_weights(examples, balance)
    by_episode: dict[int, list[Example]] = {}
    for one in sorted(examples, key=lambda one: (one.episode, one.point)):
        by_episode.setdefault(one.episode, []).append(one)
    out = []
    for number, some in by_episode.items():
        size = some[-1].point + 1
        branches = []
        for one in some:
            answer = grammar.ids(one.value)
            role = np.array([PROMPT] * len(grammar.question) + [FORECAST] * len(answer), np.int8)
            ids = np.array([*grammar.question, *answer], np.int64)
            branches.append(Branch(one.point, ids, role, weight[one.value is not None]))
        zeros = np.zeros(size, np.int32)
        out.append(
            Sequence(readings[number].episode_id, readings[number].ids[:size], np.full(size, PROMPT, np.int8), zeros, zeros.astype(np.float32),
                     np.zeros(1, np.float32), branches=tuple(branches))
        )  # fmt: skip
    return out


def rl_with_trl(
    model: Any, template: Template, grammar: Grammar, examples: Seq[Example], own: Rl, *, scratch: Path, progress: Progress = _silent
) -> list[dict[str, float]]:
    """TRL's GRPOTrainer with the prediction reward; trains `model` and returns the curve. Prompts are token ids and are never encoded
    again, which TRL has no setting for."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    if not examples or not own.steps:
        return []

    class Trainer(GRPOTrainer):
        def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
            return [[*examples[int(prompt)].ids.tolist(), *grammar.question] for prompt in prompts], None, {}

    def reward(completion_ids: list[list[int]], place: list[int], **_: Any) -> list[float]:
        texts = template.decode_replies(completion_ids)
        labels = [examples[index].value for index in place]
        return [prediction_reward(text, value is not None, value) for text, value in zip(texts, labels, strict=True)]

    config = GRPOConfig(
        output_dir=str(scratch / "rl"),
        per_device_train_batch_size=own.prompts * own.samples,
        num_generations=own.samples,
        max_completion_length=own.max_tokens,
        max_steps=own.steps,
        learning_rate=own.lr,
        lr_scheduler_type="constant",
        temperature=own.temperature,
        weight_decay=0.0,
        max_grad_norm=1.0,
        seed=own.seed,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        activation_checkpointing=False,
        disable_tqdm=True,
    )
    data = Dataset.from_list([{"prompt": str(index), "place": index} for index in range(len(examples))])
    with _for_trl(model):
        trainer = Trainer(model=model, reward_funcs=reward, args=config, train_dataset=data, processing_class=template.tokenizer)
        return _trained(trainer, "reward", progress)


class _for_trl:
    """transformers' own attention inside, since TRL pads and masks for itself; ours again afterwards."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.model.set_attn_implementation("sdpa")

    def __exit__(self, *_: object) -> None:
        self.model.set_attn_implementation(attention.NAME)


def _trained(trainer: Any, name: str, progress: Progress) -> list[dict[str, float]]:
    spoiled = "fit_meter: the meter's weights are no longer finite after TRL's steps; lower fit_meter.sft.lr or fit_meter.rl.lr"
    return train(trainer, name, lambda step, _, log: {"step": step, name: float(log[name])}, progress, spoiled)
