"""A meter before it is trained: the model of a version, on a tokenizer that has tokens for the answer's frame."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from ratchet.episodes.template import Template, load_template
from ratchet.meter.answer import Grammar, reserve
from ratchet.meter.meter import LONGEST_ANSWER
from ratchet.models import attention
from ratchet.models.build import COMPANIONS, load_model

SPREAD = 0.02  # of the rows of reserved tokens around the mean row


def make_base(base: Path, folder: Path, action_format: str, seed: int) -> tuple[Any, Template, Grammar, list[str]]:
    """(model in transformers' form, template, grammar, ids of the tokenizers that it reads as its own); the tokenizer goes into `folder`.

    On a tokenizer of ours six tokens are added, which changes no token of any text. Their rows begin near the mean of all rows, and the
    context grows by a question and an answer, so that every episode of the base model's limit can be asked to its end.
    """
    template = load_template(base, action_format)
    alike = [template.tokenizer_id]
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMPANIONS:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)
    size = reserve(template.tokenizer)
    model = load_model(base)
    if size > len(template.tokenizer) or size > model.get_input_embeddings().weight.shape[0]:
        template.tokenizer.save_pretrained(str(folder))
        _grow(model, size, seed)
        template = load_template(folder, action_format)
    grammar = Grammar.of(template)
    if len(grammar.question) == 1:  # one of ours: rotary positions from scratch, which nothing has fixed
        model.config.max_position_embeddings += len(grammar.question) + LONGEST_ANSWER + 1
    return model, template, grammar, alike


def _grow(model: Any, size: int, seed: int) -> None:
    """Rows for new tokens, in the embedding and in the head."""
    before = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(seed)
    tied = getattr(model.config, "tie_word_embeddings", False)
    layers = [model.get_input_embeddings()] + ([] if tied else [model.get_output_embeddings()])
    olds = [layer.weight.detach().clone() for layer in layers]
    model.resize_token_embeddings(size, mean_resizing=False)
    layers = [model.get_input_embeddings()] + ([] if tied else [model.get_output_embeddings()])
    with torch.no_grad():
        for layer, old in zip(layers, olds, strict=True):
            noise = torch.randn((size - before, old.shape[1]), generator=generator) * SPREAD
            layer.weight[:before] = old
            layer.weight[before:] = old.mean(0) + noise.to(old)
    model.set_attn_implementation(attention.NAME)
