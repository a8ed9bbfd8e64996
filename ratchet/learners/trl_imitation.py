"""Warm start through TRL's SFTTrainer: the same sequences, the same loss, for those who want its configuration (peft, FSDP).

It computes entropies and accuracies over the whole vocabulary at every position, which is why a small model's own warm start
does not use it. A run that is killed starts again whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.episodes.template import Template
from ratchet.learners import trl_training
from ratchet.learners.batches import REPLY, Sequence
from ratchet.learners.imitation import ImitationResult, ImitationSettings

IGNORED = -100  # label of a token without loss
SPOILED = (
    "TRL's trainer took steps whose gradient was not finite, and the weights are spoiled; lower warm_start.lr, or set "
    "warm_start.trainer to learner, which skips such steps"
)


def rows(sequences: Seq[Sequence]) -> list[dict[str, list[int]]]:
    """TRL's prepared rows: `input_ids`, and `labels` on the replies' tokens alone, the first token excepted."""
    out = []
    for one in sequences:
        mask = (one.role == REPLY) & (np.arange(len(one.ids)) > 0)
        out.append({"input_ids": one.ids.tolist(), "labels": np.where(mask, one.ids, IGNORED).tolist()})
    return out


def make_trainer(model: Any, template: Template, train: Seq[Sequence], settings: ImitationSettings, folder: Path, **overrides: Any) -> Any:
    """An SFTTrainer over `train`. Batches hold about `batch_tokens` tokens: their mean length gives the batch size."""
    import torch
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    mean = float(np.mean([len(one.ids) for one in train]))
    size = max(1, round(settings.batch_tokens / mean))
    cpu = not torch.cuda.is_available()
    config = SFTConfig(
        output_dir=str(folder),
        per_device_train_batch_size=size,
        max_steps=max(1, round(settings.tokens / (size * mean))),
        learning_rate=settings.lr,
        lr_scheduler_type="linear",
        warmup_steps=settings.warmup_share,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        logging_steps=settings.log_every,
        completion_only_loss=True,
        max_length=None,
        report_to="none",
        save_strategy="no",
        use_cpu=cpu,
        bf16=settings.autocast == "bf16",
        activation_checkpointing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        disable_tqdm=True,
        **overrides,
    )
    model.set_attn_implementation("sdpa")  # TRL pads and masks for itself
    return SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows(train)), processing_class=template.tokenizer)


def imitate_with_trl(
    model: Any,
    template: Template,
    train: Seq[Sequence],
    held_out: Seq[Sequence],
    settings: ImitationSettings,
    *,
    scratch: Path,
    progress: Callable[[int, int, dict[str, Any]], None] = lambda done, total, point: None,
) -> tuple[Any, ImitationResult]:
    """As `imitate`, by TRL. The curve comes from its log. Raises RatchetError where the weights are not finite afterwards."""
    from ratchet.learners.actor import ActorLearner
    from ratchet.learners.imitation import held_out_loss
    from ratchet.losses.likelihood import Likelihood
    from ratchet.models import attention

    def point_of(step: int, steps: int, log: dict[str, Any]) -> dict[str, Any]:
        tokens = int(settings.tokens * step / steps)
        return {"tokens": tokens, "loss": log["loss"], "observation_loss": None, "held_out_loss": None, "grad_norm": log.get("grad_norm")}

    trainer = make_trainer(model, template, train, settings, scratch / "trl")
    curve = trl_training.train(trainer, "loss", point_of, lambda step, steps, point: progress(point["tokens"], settings.tokens, point), SPOILED)
    tokens = int(trainer.state.num_input_tokens_seen) or settings.tokens
    result = ImitationResult(steps=int(trainer.state.global_step), tokens=tokens, curve=curve)
    model.set_attn_implementation(attention.NAME)
    learner = ActorLearner(model, [Likelihood()], optimizer="adamw", batch_tokens=settings.batch_tokens, max_grad_norm=1.0)
    result.held_out_loss = held_out_loss(learner, held_out)
    if result.curve:
        result.curve[-1]["held_out_loss"] = result.held_out_loss
    return model, result
