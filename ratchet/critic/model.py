"""The critic: V and Q heads on a backbone of its own, read in one causal pass an episode (methods §5).

V is read at the last token before an action, Q at the last token of it; so V cannot know the action. Behind Q stand target heads that
follow it slowly (Polyak); they read the backbone as it is, as those of ILQL do (Snell et al. 2023), so that no second pass is needed [ours].

Legend: T packed tokens · W width · S steps · H heads of Q.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.models.attention import Packed
from ratchet.models.build import load_model, save_model
from ratchet.models.fused import hidden_of

HEADS = "heads.safetensors"


@dataclass
class Pass:
    """What one packed pass reads: its tokens, and where each of its S steps is read."""

    ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    layout: Packed
    before: Tensor  # int64 [S] the last token before the action
    last: Tensor  # int64 [S] the last token of the action


class Readings(NamedTuple):
    value: Tensor  # [S]
    q: Tensor  # [S, H]
    target: Tensor  # [S] of the target heads, the smaller one of two; without a gradient


class Critic(nn.Module):
    """`backbone` is a causal LM whose head is not used. `twin`: two heads of Q, of whose targets the smaller one counts."""

    def __init__(self, backbone: Any, *, twin: bool, seed: int) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.config.get_text_config().hidden_size
        generator = torch.Generator().manual_seed(seed)
        self.value_head = _head(width, generator)
        self.q_heads = nn.ModuleList(_head(width, generator) for _ in range(2 if twin else 1))
        self.target_heads = copy.deepcopy(self.q_heads).requires_grad_(False)
        self.to(next(backbone.parameters()).device)

    @property
    def twin(self) -> bool:
        return len(self.q_heads) > 1

    def forward(self, batch: Pass) -> Readings:
        hidden = hidden_of(self.backbone, batch.ids, batch.positions, batch.layout)
        before, last = hidden.index_select(0, batch.before).float(), hidden.index_select(0, batch.last).float()
        value = self.value_head(before).squeeze(1)
        q = torch.cat([one(last) for one in self.q_heads], 1)
        with torch.no_grad():
            target = torch.cat([one(last) for one in self.target_heads], 1).amin(1)
        return Readings(value, q, target)

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Target heads ← (1 − rate)·target + rate·Q."""
        for slow, quick in zip(self.target_heads.parameters(), self.q_heads.parameters(), strict=True):
            slow.lerp_(quick, rate)


def _head(width: int, generator: torch.Generator) -> nn.Sequential:
    """An MLP W → W → 1 whose last layer is zero: before it is fitted a critic says 0 everywhere."""
    inner, out = nn.Linear(width, width), nn.Linear(width, 1)
    with torch.no_grad():
        inner.weight.copy_(torch.randn(width, width, generator=generator) / width**0.5)
        for zero in (inner.bias, out.weight, out.bias):
            zero.zero_()
    return nn.Sequential(inner, nn.SiLU(), out)


def save_critic(critic: Critic, template_folder: Path, folder: Path, card: dict[str, Any]) -> str:
    """Writes the backbone as a Hugging Face folder, the heads beside it and the card; returns the version, a hash of all of them."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: one.detach().cpu().contiguous().clone() for name, one in critic.state_dict().items() if not name.startswith("backbone.")}
    save_file(tensors, str(folder / HEADS))
    return save_model(critic.backbone, template_folder, folder, {**card, "kind": "critic"})


def load_critic(folder: Path) -> Critic:
    """What `save_critic` wrote. Raises RatchetError where the heads are missing or of another backbone."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / HEADS).is_file():
        raise RatchetError(f"{folder}: no {HEADS}, so this is no critic; run `fit_critic` again")
    try:
        heads = load_file(str(folder / HEADS))
        critic = Critic(load_model(folder, light=True), twin=any(name.startswith("q_heads.1.") for name in heads), seed=0)
        found = critic.load_state_dict(heads, strict=False)
    except (SafetensorError, RuntimeError) as error:
        raise RatchetError(f"{folder}/{HEADS}: cannot be read ({str(error).splitlines()[0]}); run `fit_critic` again") from None
    if found.unexpected_keys or any(not name.startswith("backbone.") for name in found.missing_keys):
        raise RatchetError(f"{folder}/{HEADS}: heads of another critic; run `fit_critic` again")
    return critic


def card_of_critic(folder: Path) -> dict[str, Any]:
    """The critic's card (ratchet.json)."""
    return read_json(folder / "ratchet.json")
