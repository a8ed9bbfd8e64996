"""The actor's learner. It knows no algorithm: sequences with one advantage a step come in, a list of terms says the loss.

One forward pass an episode; log-probs only where a term has a loss; a step that is not finite or explodes is skipped and
counted. Accelerate places it (CPU, several GPUs, DeepSpeed).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ratchet.clock import CLOCK
from ratchet.learners.batches import REPLY, Micro, Sequence, masked, micro_batch, pack, separated
from ratchet.learners.optimizers import make_optimizers, set_lr
from ratchet.losses.base import Term
from ratchet.models.fused import fusable, hidden_states
from ratchet.models.parts import decoder, head


class Scorer(torch.nn.Module):
    """The model as the learner calls it: packed tokens in, log-probs of the loss tokens out. One forward through one
    module, so that data-parallel wrappers see every parameter."""

    def __init__(self, model: Any, temperature: float, fused: bool = False) -> None:
        """`fused`: the model's pass in few operations (ratchet/models/fused.py), which calls none of its modules."""
        super().__init__()
        self.model, self.temperature, self.fused = model, temperature, fused

    def forward(self, micro: Micro) -> Tensor:
        """Log-probs [M] at the learner's temperature; the head reads no other position."""
        logits = head(self.model)(self._hidden(micro).index_select(0, micro.before)).float()
        if self.temperature not in (0.0, 1.0):
            logits = logits / self.temperature
        return -torch.nn.functional.cross_entropy(logits, micro.target, reduction="none")

    def _hidden(self, micro: Micro) -> Tensor:
        if self.fused:
            return hidden_states(self.model, micro.ids[0], micro.positions[0], micro.layout)
        return decoder(self.model)(input_ids=micro.ids, position_ids=micro.positions, use_cache=False, layout=micro.layout).last_hidden_state[0]


@dataclass
class Update:
    """What one optimiser step did. `metrics`: each term's value, its own metrics, `grad_norm` before clipping.

    `skipped`: the gradient was not finite or exploded. A batch that no term wants takes no step and is not skipped.
    """

    metrics: dict[str, float]
    skipped: bool


class ActorLearner:
    """Holds the model and its optimisers; `update` takes one optimiser step on a batch of sequences."""

    def __init__(
        self,
        model: Any,
        terms: Seq[Term],
        *,
        optimizer: str,
        batch_tokens: int,
        max_grad_norm: float,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        autocast: str = "none",
        max_grad_norm_ratio: float = 1e4,
        packing: Literal["branches", "separate"] = "branches",
    ) -> None:
        """`batch_tokens` bounds a micro-batch (memory), `temperature` is that of the sampled distribution. `autocast` "bf16" runs an
        update's passes in bfloat16 where that is safe; weights, optimiser states and `logprobs` stay as they are. A gradient longer
        than `max_grad_norm_ratio` times `max_grad_norm` has exploded: clipped or not, it is no step worth taking. `packing` says
        whether branches share the pass of their sequence or are sequences of their own; the gradients are the same."""
        from accelerate import Accelerator
        from accelerate.utils import DistributedType

        self.accelerator = Accelerator(cpu=not torch.cuda.is_available())
        precision = torch.bfloat16 if autocast == "bf16" else torch.float32
        # DeepSpeed gathers a module's weights when the module is called.
        fused = fusable(model) and self.accelerator.distributed_type != DistributedType.DEEPSPEED
        optimizers = make_optimizers(model, optimizer, weight_decay, precision)  # type: ignore[arg-type]
        self.scorer, *self.optimizers = self.accelerator.prepare(Scorer(model, temperature, fused), *optimizers)
        self.terms = [term for term in terms if term.weight != 0]
        self.batch_tokens, self.max_grad_norm, self.packing = batch_tokens, max_grad_norm, packing
        self.exploded = max_grad_norm * max_grad_norm_ratio
        self.is_exact = autocast == "none"
        self.autocast = torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=autocast == "bf16")

    @property
    def model(self) -> Any:
        """The causal LM itself, without wrappers."""
        return self.accelerator.unwrap_model(self.scorer).model

    def wants(self, one: Sequence) -> bool:
        """Whether any term has a gradient for it; where none has, it costs no pass."""
        return any(term.wants(one) for term in self.terms)

    def update(self, batch: Seq[Sequence], lr: float, only: frozenset[str] | None = None) -> Update:
        """One step on the whole batch, in as many micro-batches as the token budget needs; `only` names terms that alone take part."""
        terms = [term for term in self.terms if only is None or term.name in only]
        with CLOCK.phase("learning"):
            return self._update(batch, lr, terms)

    def _update(self, batch: Seq[Sequence], lr: float, terms: Seq[Term]) -> Update:
        self.scorer.train()
        processes = self.accelerator.num_processes
        denominators = {term.name: term.denominator(batch) or 1.0 for term in terms}
        sums: dict[str, float] = {}
        for micro in self._micro_batches(batch, terms):
            CLOCK.counts["tokens_learned"] += micro.ids.shape[1]
            with self.autocast:
                logp = self.scorer(micro)
            loss = logp.new_zeros(())
            for term in terms:
                total, metrics = term.numerator(logp, micro)
                mean = total / denominators[term.name]
                loss = loss + term.weight * mean
                for name, value in {term.name: mean, **{k: v / denominators[term.name] for k, v in metrics.items()}}.items():
                    sums[name] = sums.get(name, 0.0) + float(value.detach())
            self.accelerator.backward(loss * processes)  # data-parallel wrappers average over processes
        return self._step(self._over_processes(sums), lr)

    def _over_processes(self, sums: dict[str, float]) -> dict[str, float]:
        """Every process has seen its own micro-batches; the metrics are of the whole batch."""
        if self.accelerator.num_processes == 1 or not sums:
            return sums
        values = torch.tensor(list(sums.values()), device=self.accelerator.device)
        return dict(zip(sums, self.accelerator.reduce(values, "sum").tolist(), strict=True))

    def _micro_batches(self, batch: Seq[Sequence], terms: Seq[Term]) -> Iterator[Micro]:
        """This process's micro-batches, laid out one after the other; every process gets equally many, so that collective calls meet."""
        groups = list(pack(self._wanted(batch, terms), self.batch_tokens))
        roles = frozenset().union(*(term.roles for term in terms))
        processes = self.accelerator.num_processes
        mine = groups[self.accelerator.process_index :: processes]
        for group in mine:
            yield micro_batch(group, roles, self.accelerator.device)
        if groups and len(mine) < -(-len(groups) // processes):
            yield micro_batch(groups[0], frozenset(), self.accelerator.device)  # no loss token: adds nothing

    def _wanted(self, batch: Seq[Sequence], terms: Seq[Term]) -> list[Sequence]:
        """What any of the terms wants, with a loss only where one of those that want it has one, and laid out as `packing` says."""
        out = []
        for one in batch:
            if wanting := [term for term in terms if term.wants(one)]:
                kept = masked(one, frozenset().union(*(term.roles for term in wanting)))
                out += separated(kept) if self.packing == "separate" else [kept]
        return out

    def _step(self, sums: dict[str, float], lr: float) -> Update:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = float(self.accelerator.clip_grad_norm_(parameters, self.max_grad_norm)) if parameters else 0.0
        skipped = not np.isfinite(norm) or norm > self.exploded
        if parameters and not skipped:
            set_lr(self.optimizers, lr)
            for optimizer in self.optimizers:
                optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return Update({**sums, "grad_norm": norm if np.isfinite(norm) else float("inf")}, skipped)

    @torch.no_grad()
    def logprobs(self, batch: Seq[Sequence], roles: frozenset[int] = frozenset({REPLY})) -> dict[str, np.ndarray]:
        """Per episode the log-probs [n] of its tokens of `roles` under the current model, 0 elsewhere."""
        self.scorer.eval()
        out = {}
        with CLOCK.phase("scoring"):
            for group in pack([replace(one, branches=()) for one in batch], self.batch_tokens):
                micro = micro_batch(group, roles, self.accelerator.device)
                full = np.zeros(micro.ids.shape[1], np.float32)
                full[(micro.before + 1).cpu().numpy()] = self.scorer(micro).cpu().numpy()
                for one, values in zip(group, np.split(full, np.cumsum([len(one.ids) for one in group])[:-1]), strict=True):
                    out[one.episode_id] = values
        return out
