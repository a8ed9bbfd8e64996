"""Branches in the pass of their episode: they see their history and themselves, nothing sees them, and gradients are those of
separate sequences, whatever the model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.errors import RatchetError
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import FORECAST, PROMPT, Branch, Sequence
from ratchet.losses.clipped_surrogate import ClippedSurrogate
from ratchet.losses.forecast import Forecast
from ratchet.losses.likelihood import Likelihood
from ratchet.models import attention, branches, cpu_attention
from ratchet.models.branches import Branched, Run, attend_eager, check_takes_branches
from tests.models import architectures, tiny

LAYOUT = [5, 3, 7], [Run(0, 1, 3), Run(0, 1, 1), Run(0, 4, 2), Run(2, 0, 2), Run(2, 5, 4), Run(2, 6, 1)]


def model_of(name: str) -> Any:
    attention.register()
    model = tiny.model() if name == "small" else architectures.make(name)
    model.set_attn_implementation(attention.NAME)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def branched(count: int = 6, seed: int = 3) -> list[Sequence]:
    """Episodes with branches from any of their points, the first and the last among them; one has none."""
    rng = np.random.default_rng(seed)
    out = tiny.sequences(count, seed=seed)
    for number, one in enumerate(out):
        one.group_share = 1 / count
        points = sorted({0, len(one.ids) - 1, *rng.integers(0, len(one.ids), 3).tolist()}) if number else []
        found = []
        for at in points:
            size = int(rng.integers(1, 8))
            role = np.where(np.arange(size) < size // 2, PROMPT, FORECAST).astype(np.int8)
            found.append(Branch(at, rng.integers(5, 60, size), role, float(rng.uniform(0.2, 2))))
        one.branches = tuple(found)
    return out


def gradients(model: Any, terms: list[Any], batch: list[Sequence], **options: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    learner = ActorLearner(model, terms, optimizer="adamw", max_grad_norm=1e6, **{"batch_tokens": 10**6, **options})
    kept: dict[str, torch.Tensor] = {}
    finish = learner._step
    learner._step = lambda sums, lr: kept.update(tiny.gradients(learner)) or finish(sums, lr)  # type: ignore[method-assign]
    metrics = learner.update(batch, 0.0).metrics
    return kept, metrics


def furthest(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest max |Δ| ÷ max |g| of any tensor; a tensor without gradient (a key's bias, which no softmax sees) is left out."""
    largest = max(float(value.abs().max()) for value in b.values())
    return max(float((a[name] - b[name]).abs().max() / b[name].abs().max()) for name in b if b[name].abs().max() > 1e-5 * largest)


@pytest.mark.parametrize("name", [*architectures.NAMES, "small"])
def test_gradients_are_those_of_separate_sequences(name: str) -> None:
    terms, batch = [ClippedSurrogate(low=0.2, high=0.28), Forecast(0.7)], branched()
    together, metrics = gradients(model_of(name), terms, batch)
    apart, others = gradients(model_of(name), terms, batch, packing="separate", batch_tokens=1)
    assert together.keys() == apart.keys() and furthest(together, apart) < 1e-5
    cut, _ = gradients(model_of(name), terms, batch, batch_tokens=1)
    assert furthest(cut, apart) < 1e-5
    for key in ("forecast", "policy", "forecast_tokens", "grad_norm"):
        np.testing.assert_allclose(metrics[key], others[key], rtol=1e-5)


def test_a_branch_sees_its_history_and_itself_and_nothing_sees_it() -> None:
    lengths, runs = LAYOUT
    seen = Branched.of(lengths, runs).seen()
    of = [(segment, None, place) for segment, n in enumerate(lengths) for place in range(n)]
    of += [(run.segment, number, run.at + 1 + j) for number, run in enumerate(runs) for j in range(run.size)]
    for query, (segment, branch, place) in enumerate(of):
        for key, (other, theirs, where) in enumerate(of):
            history = theirs is None and where <= (place if branch is None else runs[branch].at)
            own = theirs is not None and theirs == branch and where <= place
            assert bool(seen[query, key]) == (segment == other and (history or own))


@pytest.mark.parametrize("threads", [1, 4])  # with four, query heads are parted backwards
@pytest.mark.parametrize("rows", [1, 4, 1000])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (4, 1)])
def test_blocks_compute_what_one_dense_mask_does(monkeypatch: pytest.MonkeyPatch, heads: tuple[int, int], rows: int, threads: int) -> None:
    monkeypatch.setattr(branches, "ROWS", rows)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    layout = Branched.of(*LAYOUT)
    blocks = sorted((block for bunch in layout.bunched[0] for block in bunch.blocks), key=lambda block: block.start)
    assert blocks[0].start == 0 and all(a.stop == b.start for a, b in pairwise(blocks))
    total, (query_heads, key_heads) = sum(LAYOUT[0]) + sum(run.size for run in LAYOUT[1]), heads
    torch.manual_seed(0)
    inputs = [torch.randn(1, total, h, 8).transpose(1, 2).requires_grad_() for h in (query_heads, key_heads, key_heads)]
    upstream, found = torch.randn(1, total, query_heads, 8), []
    for attend in (layout.attend, lambda *given: attend_eager(layout, *given)):
        out = attend(*inputs, 0.4)
        found.append([out.detach(), *torch.autograd.grad((out * upstream).sum(), inputs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("threads", "units", "groups", "pieces"), [(1, 3, 4, 1), (2, 4, 4, 1), (2, 3, 4, 2), (2, 1, 4, 2), (4, 1, 4, 4), (2, 1, 3, 3)])
def test_query_heads_are_parted_where_a_thread_would_wait(
    monkeypatch: pytest.MonkeyPatch, threads: int, units: int, groups: int, pieces: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert cpu_attention._pieces(units, groups) == pieces


def test_in_bfloat16_it_is_the_same_within_its_rounding() -> None:
    layout = Branched.of([50, 30, 70], [Run(0, 1, 3), Run(0, 10, 9), Run(0, 40, 12), Run(2, 0, 20), Run(2, 55, 14), Run(2, 69, 7)])
    torch.manual_seed(0)
    exact = [torch.randn(1, h, 215, 16, requires_grad=True) for h in (4, 2, 2)]
    rounded = [one.detach().bfloat16().requires_grad_() for one in exact]
    upstream, found = torch.randn(1, 215, 4, 16), []
    for attend, inputs in ((lambda *given: attend_eager(layout, *given), exact), (layout.attend, rounded)):
        out = attend(*inputs, 0.25)
        found.append([out.detach(), *torch.autograd.grad((out.float() * upstream).sum(), inputs)])
    assert found[1][0].dtype == torch.bfloat16
    for one, other in zip(*found, strict=True):
        assert (one - other.float()).norm() < 0.01 * one.norm()


@pytest.mark.parametrize("heads", [(4, 2), (3, 3)])
def test_the_written_out_backward_pass_is_the_derivative(heads: tuple[int, int]) -> None:
    layout = Branched.of([5, 4, 7], LAYOUT[1])
    assert sum(one.numel() for one in layout.trunk.rows) > layout.tokens, "a row is filled up"
    total = layout.tokens + sum(run.size for run in LAYOUT[1])
    torch.manual_seed(0)
    inputs = [torch.randn(1, h, total, 3, dtype=torch.float64, requires_grad=True) for h in (heads[0], heads[1], heads[1])]
    assert torch.autograd.gradcheck(lambda *given: layout.attend(*given, 0.7), inputs)
    assert torch.autograd.gradcheck(lambda *given: layout.trunk.attend(*(one[:, :, : layout.tokens] for one in given), 0.7), inputs)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_given_the_same_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(branches, "_flex", lambda: flex_attention)  # as it is: only a GPU has it compiled
    layout = Branched.of(*LAYOUT)
    total = layout.tokens + sum(run.size for run in LAYOUT[1])
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, h, total, 16) for h in (4, 2, 2))
    found = branches._on_gpu(layout, query, key, value, 0.3)
    torch.testing.assert_close(found, attend_eager(layout, query, key, value, 0.3)[:, layout.tokens :], rtol=1e-4, atol=1e-5)


def test_a_trunk_is_what_it_is_without_branches() -> None:
    batch = branched()
    plain = [Sequence(one.episode_id, one.ids, one.role, one.step, one.old_logprobs, one.advantages) for one in batch]
    with_branches, _ = gradients(model_of("small"), [Likelihood()], batch)
    without, _ = gradients(model_of("small"), [Likelihood()], plain)
    assert all(torch.equal(value, without[name]) for name, value in with_branches.items())


@pytest.mark.parametrize("runs", [[Run(0, 3, 1), Run(0, 2, 1)], [Run(1, 0, 1), Run(0, 0, 1)], [Run(0, 5, 1)], [Run(0, -1, 1)], [Run(0, 0, 0)]])
def test_branches_out_of_order_or_from_nowhere_are_refused(runs: list[Run]) -> None:
    with pytest.raises(ValueError, match="sorted|does not continue"):
        Branched.of([5, 3], runs)


@pytest.mark.parametrize("name", [*architectures.NAMES, "small"])
def test_a_model_that_takes_branches_is_accepted_and_left_as_it_was(name: str) -> None:
    model = model_of(name)
    check_takes_branches(model, "here", "packing to separate")
    assert model.config._attn_implementation == attention.NAME


def test_a_model_that_cannot_take_branches_is_refused_by_name_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Gemma2Config, MambaConfig, MistralConfig

    attention.register()
    for config, why in (
        (MistralConfig(**architectures.SHAPE, sliding_window=4), "MistralForCausalLM.*sliding window"),
        (Gemma2Config(**architectures.SHAPE, head_dim=8), "Gemma2ForCausalLM.*capped"),
        (MambaConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, state_size=4), "MambaForCausalLM.*state"),
    ):
        with pytest.raises(RatchetError, match=f"here: {why}.*set packing to separate"):
            check_takes_branches(architectures.plain(config), "here", "packing to separate")
    monkeypatch.setattr(Branched, "attend", lambda layout, *given: attend_eager(Branched.of([6], [Run(0, 3, 3), Run(0, 5, 2)]), *given))
    with pytest.raises(RatchetError, match="LlamaForCausalLM.*apart by"):
        check_takes_branches(model_of("small"), "here", "packing to separate")
