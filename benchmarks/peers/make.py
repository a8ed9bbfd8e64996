"""Makes what both sides play with: games, a tokenizer, and a model from scratch with its weights in a Hugging Face folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.world import GAMES

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}<begin><observe>{{ message.content }}<act>"
    "{%- elif message.role == 'tool' -%}<observe>{{ message.content }}<act>"
    "{%- else -%}{{ message.content }}"
    "{%- for call in message.tool_calls or [] -%}{{ call.function.name }} {{ call.function.arguments | tojson }}{%- endfor -%}<end>"
    "{%- endif -%}{%- endfor -%}"
)
"""Our turns as a chat template: the same ids as ratchet/episodes/template.py gives, so that both sides read the same."""


@dataclass(frozen=True)
class Shape:
    """A Llama from scratch."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp: int


FIVE_MILLION = Shape(layers=6, width=256, heads=4, kv_heads=1, mlp=768)  # the actor of presets/alfworld.yaml
ONE_MILLION = Shape(layers=4, width=128, heads=4, kv_heads=1, mlp=384)  # that of the quickstart
TINY = Shape(layers=2, width=64, heads=2, kv_heads=1, mlp=128)


def make_world(folder: Path, *, tasks: int, shape: Shape, context: int, seed: int = 1, rooms: int = 6, texts: int = 150) -> int:
    """Writes games, `tokenizer/` and `model/` into `folder`; returns the number of the model's parameters.

    The tokenizer is made of an expert's episodes on `texts` games.
    """
    from ratchet.envs.alfworld.games import generate_games
    from ratchet.envs.alfworld.storage import write_games
    from ratchet.episodes.tokenizer import train_tokenizer
    from ratchet.models.build import from_scratch, save_model

    folder.mkdir(parents=True, exist_ok=True)
    games = generate_games("train", max(tasks, texts), seed, rooms)
    write_games(folder / GAMES, games[:tasks])
    train_tokenizer(expert_texts(games[:texts]), 1200, folder / "tokenizer")
    tokenizer = tokenizer_of(folder / "tokenizer")
    model = from_scratch(
        **asdict(shape),
        vocab=len(tokenizer),
        context=context,
        seed=seed,
        begin=tokenizer.bos_token_id,
        end=tokenizer.eos_token_id,
        pad=tokenizer.pad_token_id,
    )
    save_model(model, folder / "tokenizer", folder / "model", {"stage": "benchmark"})
    return sum(parameter.numel() for parameter in model.parameters())


def expert_texts(games: list[Any]) -> list[str]:
    """What is read and written in an expert's episodes."""
    from ratchet.envs.alfworld.env import AlfworldEnv
    from ratchet.envs.alfworld.expert import AlfworldExpert
    from ratchet.envs.alfworld.games import game_task
    from ratchet.episodes.formats import format_reply

    env, texts = AlfworldEnv({game.task_id: game for game in games}, "compiled"), []
    for game in games:
        task, expert = game_task(game, "train"), AlfworldExpert()
        turn = env.reset(task)
        expert.reset(task, turn)
        for _ in range(30):
            reply = format_reply(*expert.act(turn))
            texts += [turn.observation, reply]
            turn = env.step(reply.rpartition("> ")[2])
            if turn.done:
                break
    return texts


def tokenizer_of(folder: Path) -> Any:
    """The folder's tokenizer with our turns as its chat template."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


