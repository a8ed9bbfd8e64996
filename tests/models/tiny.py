"""Tiny models, tokenizers and episodes for tests of the learning core. Weights are large enough for attention to matter."""

from __future__ import annotations

import copy
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratchet.episodes.template import Template, load_template
from ratchet.episodes.tokenizer import train_tokenizer
from ratchet.learners.batches import OBSERVATION, PROMPT, REPLY, Sequence
from ratchet.models.build import from_scratch

torch.set_num_threads(1)

TEXTS = ([f"You see a cabinet {i % 12 + 1}, and a drawer {i % 3 + 1}. {chr(97 + i % 26)}\n> go to cabinet {i % 5 + 1}" for i in range(120)]
         + ["cabinet 3", "toy-1: up up wait", "> up", "up", "wait"] * 30)


@cache
def tokenizer_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ratchet-tiny-"))
    train_tokenizer(TEXTS, 270, folder)
    return folder


@cache
def template() -> Template:
    """Ours: pieces are special tokens."""
    return load_template(tokenizer_folder())


def _byte_level(special: tuple[str, ...]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, *["\n\n\n"] * 200], trainer)  # line breaks merge, as in most vocabularies
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return tokenizer


@cache
def foreign_folder() -> Path:
    """A tokenizer of someone else: its own special tokens, and settings that cut and pad what it encodes."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = _byte_level(("<|start|>", "<|im_end|>"))
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=24, pad_id=0)
    folder = Path(tempfile.mkdtemp(prefix="ratchet-foreign-"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|start|>", eos_token="<|im_end|>").save_pretrained(str(folder))
    return folder


@cache
def chat_folder(chat_template: str, special: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")) -> Path:
    """The tokenizer of a chat model: first special token pads, the last one ends a turn."""
    from transformers import PreTrainedTokenizerFast

    folder = Path(tempfile.mkdtemp(prefix="ratchet-chat-"))
    fast = PreTrainedTokenizerFast(tokenizer_object=_byte_level(special), pad_token=special[0], bos_token=special[1], eos_token=special[-1])
    fast.chat_template = chat_template
    fast.save_pretrained(str(folder))
    return folder


@cache
def text_template() -> Template:
    """Of a foreign tokenizer: pieces are plain text markers."""
    return load_template(foreign_folder())


@cache
def _model(vocab: int, layers: int, seed: int) -> Any:
    return sharpened(from_scratch(layers=layers, width=32, heads=4, kv_heads=2, mlp=48, vocab=vocab, context=256, seed=seed, begin=1, end=4, pad=0))


def sharpened(model: Any) -> Any:
    """With larger weights, so that what it writes depends on what it reads."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(8)
    return model


def model(vocab: int = 60, layers: int = 2, seed: int = 1) -> Any:
    return copy.deepcopy(_model(vocab, layers, seed))


def reference_logprobs(model: Any, ids: Any, temperature: float = 1.0) -> torch.Tensor:
    """log p of ids[1:] by transformers' own eager attention over the whole sequence, nothing of ours in between."""
    other = copy.deepcopy(model).eval()
    other.set_attn_implementation("eager")
    with torch.no_grad():
        logits = other(input_ids=torch.as_tensor(np.asarray(ids))[None], use_cache=False).logits[0].float()
    logp = torch.log_softmax(logits / temperature, -1)
    return logp[:-1].gather(1, torch.as_tensor(np.asarray(ids))[1:, None]).squeeze(1)


def sequences(count: int = 8, vocab: int = 60, seed: int = 0) -> list[Sequence]:
    """Episodes of 1–4 steps and different lengths, each with its own advantage at every step."""
    rng = np.random.default_rng(seed)
    out = []
    for number in range(count):
        ids, role, step = [], [], []
        steps = int(rng.integers(1, 5))
        for t in range(steps):
            for kind, n in ((PROMPT if t == 0 else OBSERVATION, rng.integers(2, 7)), (REPLY, rng.integers(1, 6))):
                ids += rng.integers(5, vocab, n).tolist()
                role += [kind] * n
                step += [t] * n
        roles = np.array(role, np.int8)
        old = np.where(roles == REPLY, rng.normal(-4, 0.3, len(ids)), 0).astype(np.float32)
        advantages = rng.normal(0, 1, steps).astype(np.float32)
        out.append(Sequence(f"episode-{number}", np.array(ids), roles, np.array(step, np.int32), old, advantages))
    return out


def gradients(learner: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in learner.model.named_parameters() if p.grad is not None}


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.state_dict().items()}
