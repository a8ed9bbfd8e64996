"""How large a model is, and how much memory a run of some settings needs at its peak. Arithmetic only; nothing is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.models.pretrained import is_package, package_gguf
from ratchet.settings import Settings, Sizes

GIB = 2**30
BASE_BYTES = GIB  # Python, torch and what they load
STATE_BYTES = 16  # a parameter while it is trained: weight, gradient, two moments, fp32
PASS_FLOATS = 14  # values that a layer keeps a token for the backward pass, in widths (attention and gated MLP)


def parameters(sizes: Sizes, vocab: int) -> int:
    """Parameters of a Llama from scratch with untied embeddings."""
    head = sizes.width // sizes.heads
    attention = 2 * sizes.width * sizes.width + 2 * sizes.width * sizes.kv_heads * head
    return 2 * vocab * sizes.width + sizes.layers * (attention + 3 * sizes.width * sizes.mlp + 2 * sizes.width) + sizes.width


def shape_of(actor: Any, vocab: int) -> tuple[int, int, int, int, int]:
    """(parameters, layers, width, key-value floats a token and layer, vocabulary) of an actor; of a package's GGUF, as its size says."""
    if isinstance(actor, Sizes):
        return parameters(actor, vocab), actor.layers, actor.width, 2 * actor.kv_heads * (actor.width // actor.heads), vocab
    if is_package(actor.path):
        count = package_gguf(actor.path).stat().st_size  # a byte a parameter, as quantised files are
        return count, 30, 576, 384, 49_152  # SmolLM2-135M's
    config = read_json(Path(actor.path) / "config.json")
    try:
        layers, width, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
        vocab = config["vocab_size"]
        kv = 2 * config.get("num_key_value_heads", heads) * config.get("head_dim", width // heads)
    except KeyError as error:
        raise RatchetError(f"{actor.path}/config.json: has no {error.args[0]}; give a decoder model in Hugging Face's layout") from None
    weights = sum(path.stat().st_size for path in Path(actor.path).glob("*.safetensors"))
    count = weights // (2 if "16" in str(config.get("torch_dtype", config.get("dtype", ""))) else 4)
    return count, layers, width, kv, vocab


def memory_of(settings: Settings) -> int:
    """Bytes at the peak of a run: the largest actor while it is trained, or its KV cache while it plays, whichever is more."""
    env = settings.env
    shards = max(settings.harvest.shard, settings.evolve_online.shard, settings.evaluate.shard)
    batch = max(settings.warm_start.batch_tokens, settings.evolve_online.batch_tokens)
    most = 0
    for actor in settings.actors.values():
        count, layers, width, kv, vocab = shape_of(actor, settings.prepare.vocab_size)
        training = STATE_BYTES * count + 4 * batch * (layers * width * PASS_FLOATS + 3 * vocab)  # logits, their softmax and gradient
        playing = STATE_BYTES * count + 4 * shards * env.max_tokens * layers * kv
        most = max(most, training, playing)
    return BASE_BYTES + most
