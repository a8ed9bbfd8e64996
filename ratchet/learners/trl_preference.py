"""ETO (Song et al. 2024): DPO on pairs of whole episodes of one task, a success before a failure, by TRL's DPOTrainer.

Only tokens that a policy wrote take part in the comparison: what was read is context, and a mask keeps it out. A run that is killed
starts again whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.learners.batches import REPLY, Sequence
from ratchet.learners.trl_training import train

Pair = tuple[Sequence, Sequence]
"""(success, failure) of one task."""


def pairs_of(sequences: Seq[Sequence], tasks: Mapping[str, str], most: int, seed: int) -> list[Pair]:
    """Of each task at most `most` pairs, failures in turns with successes, drawn by `seed`; tasks in the order of their names."""
    from ratchet.learners.checkpoint import rng_seed

    by_task: dict[str, tuple[list[Sequence], list[Sequence]]] = {}
    for one in sorted(sequences, key=lambda one: one.episode_id):
        by_task.setdefault(tasks[one.episode_id], ([], []))[0 if one.solved else 1].append(one)
    out: list[Pair] = []
    for number, name in enumerate(sorted(by_task)):
        wins, losses = by_task[name]
        if wins and losses:
            found = [(win, loss) for loss in losses for win in wins]
            order = np.random.default_rng(rng_seed(seed, number)).permutation(len(found))
            out += [found[index] for index in order[:most]]
    return out


def rows(pairs: Seq[Pair]) -> list[dict[str, list[int]]]:
    """TRL's columns. An episode begins with what was read, which both of a pair share in part; so all but the first token is completion,
    and `chosen_mask`, `rejected_mask` say which of it was written."""
    out = []
    for win, loss in pairs:
        row: dict[str, list[int]] = {"prompt_ids": win.ids[:1].tolist()}
        for name, one in (("chosen", win), ("rejected", loss)):
            row[f"{name}_ids"] = one.ids[1:].tolist()
            row[f"{name}_mask"] = (one.role[1:] == REPLY).astype(int).tolist()
        out.append(row)
    return out


def collator(pad: int) -> Any:
    """TRL's own collator, whose mask of the completions is replaced by that of the actions."""
    import torch
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    class Actions(DataCollatorForPreference):
        def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
            out = super().torch_call(examples)
            masks = [example[f"{name}_mask"] for name in ("chosen", "rejected") for example in examples]
            for row, mask in enumerate(masks):
                out["completion_mask"][row, 1 : 1 + len(mask)] = torch.tensor(mask)
            return out

    return Actions(pad_token_id=pad)


def prefer_with_trl(
    model: Any,
    pairs: Seq[Pair],
    *,
    beta: float,
    batch: int,
    epochs: int,
    lr: float,
    warmup_share: float,
    max_grad_norm: float,
    seed: int,
    autocast: str,
    folder: Path,
    tokenizer_folder: Path,
    progress: Callable[[int, int, dict[str, Any]], None] = lambda done, total, point: None,
) -> tuple[Any, dict[str, Any]]:
    """`model` after DPO against itself as it was. Raises RatchetError where the weights are not finite afterwards."""
    import copy

    import torch
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    from ratchet.models import attention

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder), local_files_only=True)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    reference = copy.deepcopy(model)
    for one in (model, reference):
        one.set_attn_implementation("sdpa")  # TRL pads and masks for itself
    config = DPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        num_train_epochs=epochs,
        learning_rate=lr,
        lr_scheduler_type="linear",
        warmup_steps=warmup_share,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=max_grad_norm,
        beta=beta,
        seed=seed,
        max_length=None,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        bf16=autocast == "bf16",
        activation_checkpointing=False,
        remove_unused_columns=False,
        disable_tqdm=True,
    )

    class Trainer(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *arguments: Any, **options: Any) -> Any:
            return dataset  # its tokens are those that were generated

    trainer = Trainer(
        model=model,
        ref_model=reference,
        args=config,
        train_dataset=Dataset.from_list(rows(pairs)),
        processing_class=tokenizer,
        data_collator=collator(tokenizer.pad_token_id),
    )

    def point_of(step: int, steps: int, log: dict[str, Any]) -> dict[str, Any]:
        return {"step": step, "loss": log["loss"], "accuracy": log.get("rewards/accuracies", 0.0), "grad_norm": log.get("grad_norm", 0.0)}

    spoiled = "TRL's trainer took steps whose gradient was not finite, and the weights are spoiled; lower evolve_offline.lr"
    curve = train(trainer, "loss", point_of, progress, spoiled)
    model.set_attn_implementation(attention.NAME)
    return model, {"steps": int(trainer.state.global_step), "curve": curve}
