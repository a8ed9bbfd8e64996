"""An update alone, on synthetic episodes: what its linear layers compute, and the memory that it takes on top of the loaded model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from benchmarks.peers.ours import learner_of
from benchmarks.peers.spec import Iteration, Learning, on_top_mb, peak_mb, resident_mb
from ratchet.learners.batches import OBSERVATION, PROMPT, REPLY, Sequence
from ratchet.models.build import load_model

READ, WRITE = 50, 10


def synthetic(count: int, lengths: tuple[int, int], vocab: int, seed: int = 1) -> list[Sequence]:
    """Episodes of random tokens in turns of READ and WRITE tokens, of lengths spread evenly from the first to the second number."""
    rng = np.random.default_rng(seed)
    out = []
    for number, length in enumerate(np.linspace(*lengths, count).astype(int)):
        place = np.arange(length)
        step = place // (READ + WRITE)
        role = np.where(place % (READ + WRITE) >= READ, REPLY, np.where(step == 0, PROMPT, OBSERVATION)).astype(np.int8)
        advantages = np.full(int(step[-1]) + 1, rng.normal(), np.float32)
        old = np.where(role == REPLY, -np.log(vocab), 0).astype(np.float32)
        out.append(Sequence(f"{number:05d}", rng.integers(5, vocab, length), role, step.astype(np.int32), old, advantages))
    return out


class Counter(TorchFunctionMode):
    """Counts the multiplications of linear layers, those of the head apart, however they are laid together."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.head = model.lm_head.weight
        self.of_a_token = sum(one.weight.numel() for one in model.model.layers.modules() if isinstance(one, torch.nn.Linear))
        self.multiplied = 0

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function is torch.nn.functional.linear and arguments[1] is not self.head:
            rows, weight = arguments[:2]
            self.multiplied += rows.numel() // rows.shape[-1] * weight.numel()
        return function(*arguments, **(named or {}))

    @property
    def computed(self) -> int:
        """Tokens: all multiplications by those of one."""
        return self.multiplied // self.of_a_token


def measure(spec: Learning) -> dict[str, Any]:
    """One update: tokens computed and real, its seconds, and MB at the peak and on top of what was there before it."""
    model = load_model(Path(spec.folder) / "model")
    episodes = synthetic(spec.episodes, spec.lengths, model.config.vocab_size)
    learner = learner_of(model, Iteration(spec.folder, 1, 1, 1, bf16=spec.bf16, batch_tokens=spec.batch_tokens))
    counter = Counter(model)
    before, began = resident_mb(), time.perf_counter()
    with counter:
        learner.update(episodes, 1e-4)
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "computed": counter.computed,
        "real": sum(len(one.ids) for one in episodes),
        "peak_mb": peak_mb(),
        "mb_on_top": on_top_mb(before),
    }
