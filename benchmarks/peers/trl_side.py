"""TRL's side of an iteration: `GRPOTrainer(environment_factory=…)` on the same model, tokens, world and episodes.

How TRL is brought to play an episode turn by turn stands in tool.py. Nothing of TRL is patched; `Counted` only counts.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from benchmarks.peers.make import tokenizer_of
from benchmarks.peers.spec import Iteration, Training, peak_mb
from benchmarks.peers.tool import RESPONSE_TEMPLATE, Tool, action_of
from benchmarks.peers.world import EndlessWorld, Sizer, drawn_tasks, make, next_tasks, tasks_of
from ratchet.envs.alfworld.benchmark import make as make_games
from ratchet.envs.alfworld.env import AlfworldEnv
from ratchet.envs.base import Task

SETTINGS: dict[str, Any] = {
    "use_cpu": True,
    "beta": 0.0,  # no reference model
    "loss_type": "dapo",  # the mean over all tokens of the step, as ours
    "epsilon": 0.2,
    "epsilon_high": 0.28,
    "num_iterations": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "optim": "adamw_torch_fused",
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "gradient_checkpointing": False,
    "shuffle_dataset": False,
    "logging_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "remove_unused_columns": False,
    "dataloader_num_workers": 0,
    "torch_compile": False,
}
"""What TRL is given beside the spec's: everything that only costs time is off."""


class Counted(GRPOTrainer):
    """GRPOTrainer as it is; it also notes what was read and written, and how long the rollout took."""

    def _generate(self, prompts: list) -> Any:
        began = time.perf_counter()
        result = super()._generate(prompts)
        prompt_ids, completion_ids, tool_mask = result[:3]
        written = sum(map(sum, tool_mask))
        self.noted.append(
            {
                "rollout_s": time.perf_counter() - began,
                "tokens_written": written,
                "tokens_read": sum(map(len, prompt_ids)) + sum(map(len, completion_ids)) - written,
                "turns": sum(environment._turns for environment in self.environments),
                "success": sum(environment._last.solved for environment in self.environments) / len(self.environments),
            }
        )
        return result

    noted: list[dict[str, Any]]


class StepTimes(TrainerCallback):
    """Seconds of each optimiser step, the rollout before it included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self._began = (0.0, 0.0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began[0])
        self.cpu.append(time.process_time() - self._began[1])


def rows_of(tasks: Sequence[Task]) -> Dataset:
    """One row a group; the prompt is what the environment's reset says."""
    return Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], "task": task.task_id} for task in tasks])


def trainer_of(
    model: Any, tokenizer: Any, tools: Callable[[], Tool], tasks: Sequence[Task], spec: Iteration, folder: str, **settings: Any
) -> tuple[Counted, StepTimes]:
    """A trainer whose steps are iterations of `spec`: one generation of all episodes, one optimiser step on them."""
    config = GRPOConfig(
        output_dir=folder,
        **{
            **SETTINGS,
            "bf16": spec.bf16,
            "use_transformers_continuous_batching": spec.continuous,
            "learning_rate": spec.lr,
            "seed": spec.seed,
            "num_generations": spec.samples,
            "per_device_train_batch_size": spec.batch,
            "gradient_accumulation_steps": spec.episodes // spec.batch,
            "max_completion_length": spec.tokens + 1,
            "generation_kwargs": {"max_new_tokens": spec.write},  # of one reply; max_completion_length is of the whole episode
            **settings,
        },
    )
    tokenizer.response_template = RESPONSE_TEMPLATE
    times = StepTimes()
    trainer = Counted(
        model=model,
        args=config,
        train_dataset=rows_of(tasks),
        processing_class=tokenizer,
        environment_factory=tools,
        callbacks=[times],
    )
    trainer.noted = []
    return trainer, times


def load(folder: Path) -> Any:
    """The model with transformers' own attention. Raises nothing of its own: the folder was just made."""
    return AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, attn_implementation="sdpa")


def measure(spec: Iteration) -> dict[str, Any]:
    """As ours: `spec.iterations` timed iterations behind a short one that warms up, and the peak memory of this process."""
    logging.set_verbosity_error()
    folder = Path(spec.folder)
    tasks, tokenizer, model = tasks_of(folder), tokenizer_of(folder / "tokenizer"), load(folder / "model")
    known = {task.task_id: task for task in tasks}
    tokenizer.padding_side = "left"

    def tool(turns: int) -> Tool:
        world: EndlessWorld = make(spec.folder, spec.read)
        return Tool(world, known, turns, world.sizer.filler * (spec.tokens + 2), str)

    with tempfile.TemporaryDirectory() as scratch:
        warm, _ = trainer_of(model, tokenizer, partial(tool, 2), next_tasks(tasks, spec.tasks, 0), spec, scratch, max_steps=1)
        warm.train()
        del warm  # its optimiser states are not the measured trainer's memory
        gc.collect()
        rows = [task for number in range(1, spec.iterations + 1) for task in next_tasks(tasks, spec.tasks, number)]
        trainer, times = trainer_of(model, tokenizer, partial(tool, spec.turns), rows, spec, scratch, max_steps=spec.iterations)
        trainer.train()
    found = [
        {**noted, "seconds": seconds, "cpu_s": cpu, "update_s": seconds - noted["rollout_s"]}
        for noted, seconds, cpu in zip(trainer.noted, times.seconds, times.cpu, strict=True)
    ]
    return {"iterations": found, "peak_mb": peak_mb()}


def train(spec: Training) -> dict[str, Any]:
    """GRPO iterations on real games, as `learning.train` does them; the model is saved in `spec.folder/spec.out`."""
    logging.set_verbosity_error()
    folder = Path(spec.folder)
    tasks, games = tasks_of(folder), make_games(spec.folder, ["train"], "compiled")
    tokenizer, model = tokenizer_of(folder / "tokenizer"), load(folder / spec.start)
    tokenizer.padding_side = "left"
    known = {task.task_id: task for task in tasks}
    too_long = Sizer(folder / "tokenizer" / "tokenizer.json").filler * (spec.tokens + 2)

    def tool() -> Tool:
        return Tool(AlfworldEnv(games.games, "compiled"), known, spec.turns, too_long, action_of, spec.max_invalid)

    with tempfile.TemporaryDirectory() as scratch:
        trainer, _ = trainer_of(
            model,
            tokenizer,
            tool,
            [task for iteration in range(spec.iterations) for task in drawn_tasks(tasks, spec.tasks, spec.seed, iteration)],
            spec,
            scratch,
            max_steps=spec.iterations * spec.steps,
            steps_per_generation=spec.episodes // spec.batch,
            gradient_accumulation_steps=spec.episodes // spec.steps // spec.batch,
        )
        began = time.perf_counter()
        trainer.train()
    model.save_pretrained(str(folder / spec.out))
    return {"success": [one["success"] for one in trainer.noted], "seconds": time.perf_counter() - began}
