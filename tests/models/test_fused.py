"""The pass in few operations is the model's own pass, forwards and backwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ratchet.models.attention import Packed
from ratchet.models.build import from_scratch
from ratchet.models.fused import fusable, hidden_states
from ratchet.models.parts import decoder

LENGTHS = [17, 5, 30, 8]


def llama(kv_heads: int = 2) -> Any:
    model = from_scratch(layers=2, width=32, heads=4, kv_heads=kv_heads, mlp=48, vocab=50, context=64, seed=1, begin=0, end=1, pad=2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)  # norms that do something
    return model


def both(model: Any, autocast: bool) -> list[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """(hidden states, gradients) of the model's own pass and of the one in few operations."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 50, (1, sum(LENGTHS)), generator=generator)  # the pad, which a policy may sample, among them
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    weight = torch.randn(sum(LENGTHS), 32, generator=generator)
    ways = (
        lambda layout: decoder(model)(input_ids=ids, position_ids=positions, use_cache=False, layout=layout).last_hidden_state[0],
        lambda layout: hidden_states(model, ids[0], positions[0], layout),
    )
    found = []
    for way in ways:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden = way(Packed.of(LENGTHS))
        hidden.float().backward(weight)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((hidden.detach().float(), gradients))
    return found


@pytest.mark.parametrize(("kv_heads", "autocast", "limit"), [(1, False, 1e-5), (2, False, 1e-5), (4, False, 1e-5), (2, True, 5e-2)])
def test_it_has_the_values_and_gradients_of_the_models_own_pass(kv_heads: int, autocast: bool, limit: float) -> None:
    model = llama(kv_heads)
    assert fusable(model)
    (hidden, gradients), (fused, found) = both(model, autocast)
    assert gradients.keys() == found.keys() and len(found) == 2 * 9 + 2, "every weight but the head's, which is not part of it"
    assert float((hidden - fused).abs().max() / hidden.abs().max()) < limit
    for name, gradient in gradients.items():
        assert float((gradient - found[name]).abs().max() / gradient.abs().max()) < limit, name


def test_attention_in_bfloat16_goes_back_in_float32() -> None:
    generator = torch.Generator().manual_seed(3)
    attend = Packed.of([20, 20]).attend
    query, key, value = (torch.randn(1, 2, 40, 8, generator=generator).bfloat16().requires_grad_() for _ in range(3))
    weight = torch.randn(1, 40, 2, 8, generator=generator)
    exact = torch.autograd.grad((attend(query.float(), key.float(), value.float(), 0.3) * weight).sum(), (query, key, value))
    mixed = torch.autograd.grad((attend(query, key, value, 0.3).float() * weight).sum(), (query, key, value))
    for one, other in zip(exact, mixed, strict=True):
        assert other.dtype == torch.bfloat16
        torch.testing.assert_close(one.float(), other.float(), atol=0.03 * float(one.float().abs().max()), rtol=0)


def test_segments_of_unlike_lengths_are_multiplied_apart() -> None:
    layout = Packed.of([10, 100, 9, 80])
    assert [tuple(rows.shape) for rows in layout.rows] == [(2, 100), (2, 10)]
    tokens = torch.cat([rows.flatten() for rows in layout.rows])
    assert torch.equal(tokens[layout.back], torch.arange(199)), "every token finds its place again"
