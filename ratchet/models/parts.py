"""The two parts of a causal LM that engine and learner call apart: the decoder (tokens → hidden states) and the head (→ logits).

They are called apart so that the head, which costs as much as the layers of a small model, is computed where logits are needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.errors import RatchetError
from ratchet.models.attention import NAME, Packed, SlotCache

TOLERANCE = 1e-3  # of log-probs in fp32; another computation differs by far more, another order of sums by far less
FIRST, SECOND, AGAIN = 5, 3, 2  # tokens of the check: two segments, the first one read in two turns


def decoder(model: Any) -> Any:
    """The module that gives hidden states: `model.model` of a Llama, `model.transformer` of a GPT-2."""
    return model.get_decoder()


def head(model: Any) -> Any:
    """The module that turns hidden states into logits."""
    return model.get_output_embeddings()


@torch.no_grad()
def check_computes(model: Any, where: str) -> None:
    """Raises RatchetError unless decoder and head with our attention compute what the model's own forward pass does.

    Refused by it: architectures whose attention transformers does not dispatch (recurrent ones, remote code), that take positions
    from elsewhere than `position_ids`, or scale logits behind the head.
    """
    size = FIRST + SECOND
    ids = (torch.arange(1, size + 1) * 7919) % model.config.get_text_config().vocab_size
    parts = ids[:FIRST], ids[FIRST:]
    try:
        model.set_attn_implementation("eager")
        expected = torch.cat([model(input_ids=part[None], use_cache=False).logits[0] for part in parts])
        model.set_attn_implementation(NAME)
        found = [_packed(model, ids), _cached(model, ids)]
    except (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError, IndexError) as error:
        raise RatchetError(
            f"{where}: {type(model).__name__} cannot be run with Ratchet's attention ({str(error).splitlines()[0]}); "
            "take a model of the Llama, Qwen2 or Qwen3 family"
        ) from error
    for logits, reference in zip(found, (expected, expected[:FIRST]), strict=True):
        gap = (torch.log_softmax(logits.float(), -1) - torch.log_softmax(reference.float(), -1)).abs().max()
        if not gap <= (TOLERANCE if logits.dtype == torch.float32 else 0.2):
            raise RatchetError(
                f"{where}: {type(model).__name__} computes other log-probs with Ratchet's attention than with its own (apart by {float(gap):.2g}); "
                "take a model of the Llama, Qwen2 or Qwen3 family"
            )


def _packed(model: Any, ids: Tensor) -> Tensor:
    positions = torch.cat([torch.arange(FIRST), torch.arange(SECOND)])
    out = decoder(model)(input_ids=ids[None], position_ids=positions[None], use_cache=False, layout=Packed.of([FIRST, SECOND]))
    return head(model)(out.last_hidden_state[0])


def _cached(model: Any, ids: Tensor) -> Tensor:
    """The first segment in two turns on the second of two slots."""
    cache, slots, hidden = SlotCache(2, FIRST + 1), np.array([1]), []
    for start, end in ((0, FIRST - AGAIN), (FIRST - AGAIN, FIRST)):
        positions = cache.place(slots, np.array([start]), np.array([end - start]))
        tokens = torch.cat([ids[start:end], ids.new_zeros(positions.shape[1] - (end - start))])[None]
        out = decoder(model)(input_ids=tokens, position_ids=positions, use_cache=False, layout=cache)
        hidden.append(out.last_hidden_state[0, : end - start])
    return head(model)(torch.cat(hidden))
