"""Decoding: our engine against Hugging Face `generate` on the same weights, in turns in one process."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from benchmarks.peers.make import tokenizer_of
from benchmarks.peers.spec import Decoding
from ratchet.engines.local import LocalEngine
from ratchet.errors import RatchetError
from ratchet.models.build import load_model


def measure(spec: Decoding) -> dict[str, Any]:
    """Tokens a second of each way in each round, prompts included in the time; the first round, which warms up, is not among them."""
    logging.set_verbosity_error()
    with players(spec) as together:
        ways = {"ours_players": together, "ours_one_process": engine(spec), **generate(spec)}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(spec.rounds + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                written = way()
                if number:
                    rates[name].append(written / (time.perf_counter() - began))
    return {"tokens_per_s": rates}


def prompts_of(spec: Decoding, tokenizer: Any) -> np.ndarray:
    return np.random.default_rng(1).integers(5, len(tokenizer), (spec.rows, spec.prompt))


@contextmanager
def players(spec: Decoding) -> Iterator[Callable[[], int]]:
    """Our way as a stage goes it: `spec.players` processes of one thread, each with its share of the rows."""
    context = multiprocessing.get_context("spawn")
    shares = [len(one) for one in np.array_split(np.arange(spec.rows), spec.players)]
    lines = [context.Pipe() for _ in shares]
    processes = [
        context.Process(target=_play, args=(theirs, replace(spec, rows=share)), daemon=True)
        for (_, theirs), share in zip(lines, shares, strict=True)
    ]
    for process in processes:
        process.start()
    for _, theirs in lines:
        theirs.close()  # so that the end of a player is the end of its line

    def way() -> int:
        for own, _ in lines:
            own.send(True)
        return full(sum(own.recv() for own, _ in lines), spec)

    try:
        yield way
    finally:
        for own, _ in lines:
            own.close()
        for process in processes:
            process.join()


def _play(line: Connection, spec: Decoding) -> None:
    torch.set_num_threads(1)
    way = engine(spec)
    while True:
        try:
            line.recv()
        except EOFError:
            return
        line.send(way())


def engine(spec: Decoding) -> Callable[[], int]:
    """Our way; returns the tokens that it wrote. The end that it looks for is in no vocabulary: every reply has its full length."""
    folder, length = Path(spec.folder), spec.prompt + spec.new + 1
    tokenizer = tokenizer_of(folder / "tokenizer")
    prompts = prompts_of(spec, tokenizer)
    own = LocalEngine(load_model(folder / "model"), slots=spec.rows, length=length, end=len(tokenizer), pad=tokenizer.pad_token_id)
    rows, ids = list(range(spec.rows)), prompts.tolist()
    rounds = iter(range(10**6))

    def way() -> int:
        own.clear(rows)
        keys = np.arange(spec.rows, dtype=np.uint64) + np.uint64(spec.rows * next(rounds))
        return full(sum(len(one.ids) for one in own.reply(rows, ids, keys, [spec.new] * spec.rows, 1.0)), spec)

    return way


def generate(spec: Decoding) -> dict[str, Callable[[], int]]:
    """transformers' ways: sampling without an end, dynamic and static cache, in fp32 and with the weights in bf16."""
    folder = Path(spec.folder)
    tokenizer = tokenizer_of(folder / "tokenizer")
    ids = torch.from_numpy(prompts_of(spec, tokenizer))
    ways = {}
    for precision in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(str(folder / "model"), local_files_only=True, attn_implementation="sdpa", dtype=precision)
        model.eval()
        for cache in ("dynamic", "static"):
            config = GenerationConfig(
                do_sample=True,
                top_k=0,
                max_new_tokens=spec.new,
                min_new_tokens=None,
                eos_token_id=None,
                pad_token_id=tokenizer.pad_token_id,
                cache_implementation=cache,
            )

            def way(model: Any = model, config: GenerationConfig = config) -> int:
                model.generation_config = config
                with torch.inference_mode():
                    out = model.generate(ids, attention_mask=torch.ones_like(ids))
                return full(out.numel() - ids.numel(), spec)

            ways[f"generate_{cache}_{'fp32' if precision == torch.float32 else 'bf16'}"] = way
    return ways


def full(written: int, spec: Decoding) -> int:
    if written != spec.rows * spec.new:
        raise RatchetError(f"{written} tokens were written instead of {spec.rows} × {spec.new}: what is compared is not the same work")
    return written
