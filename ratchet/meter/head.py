"""The meter's other form: completion and remaining tokens read off the question's hidden state by a linear head; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ratchet.meter.answer import Grammar
from ratchet.meter.passes import BUDGET, Pass, Trunk, packed
from ratchet.meter.written import Answers, places_of

FILE = "head.safetensors"


class Head(nn.Module):
    """[Q, W] → the log-odds of completion [Q] and log(1 + remaining) [Q]. Zero at first: even odds, nothing left."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        both = self.linear(hidden.float())
        return both[:, 0], both[:, 1]


def width_of(model: Any) -> int:
    return int(model.config.get_text_config().hidden_size)


@torch.inference_mode()
def ask_head(model: Any, head: Head, grammar: Grammar, trunks: Sequence[Trunk], *, budget: int = BUDGET) -> Answers:
    """As `ask_written`: a pass, and no token behind it."""
    places = places_of(trunks)
    found = Answers.empty(sum(map(len, places)))
    for group in packed(trunks, budget, len(grammar.question)):
        one = Pass.of(model, [trunks[index] for index in group], grammar.question, keep=False)
        logit, size = head(one.hidden[torch.from_numpy(one.ends).to(one.hidden.device)])
        where = np.concatenate([places[index] for index in group])
        found.logit[where] = logit.double().cpu().numpy()
        found.remaining[where] = size.double().clamp(max=20).expm1().clamp(min=0).cpu().numpy()
    found.completable, found.parsed = found.logit >= 0, np.ones(len(found.logit), bool)
    return found


def save_head(head: Head, folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}, str(folder / FILE))


def load_head(folder: Path, width: int) -> Head:
    from safetensors.torch import load_file

    found = Head(width)
    found.load_state_dict(load_file(str(folder / FILE)))
    return found
