"""Turns to tokens and replies to actions.

An episode is one sequence of independent pieces, each encoded by itself and never again:

    begin · [observe · observation · act · reply · end-of-turn] · [observe · …

Because no piece is encoded together with another, adding a turn never changes an earlier token (prefix-stable), and
what a policy generated is stored as the ids that it generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.files import sha256_files

ACTION_MARK = "> "
SPECIAL_TOKENS = {"pad": "<pad>", "begin": "<begin>", "observe": "<observe>", "act": "<act>", "end": "<end>"}


def parse_reply(reply: str) -> tuple[str, bool]:
    """(`action`, `format_ok`): the action is the literal text behind `> ` on the reply's last line.

    `format_ok` asks for exactly one such line, at the end, and not empty. Without one the action is "".
    """
    marks = [line for line in reply.split("\n") if line.startswith(ACTION_MARK)]
    last = reply.rsplit("\n", 1)[-1]
    if not last.startswith(ACTION_MARK):
        return "", False
    action = last[len(ACTION_MARK) :]
    return action, len(marks) == 1 and bool(action.strip())


def format_reply(thought: str, action: str) -> str:
    """The reply that `parse_reply` takes apart again."""
    return f"{thought}\n{ACTION_MARK}{action}" if thought else f"{ACTION_MARK}{action}"


def action_type(action: str) -> str:
    """The action's verb: its first word ("go", "open", …), "" for none."""
    return action.split(" ", 1)[0] if action.strip() else ""


@dataclass(frozen=True)
class Template:
    """The pieces' ids for one tokenizer. `end` is one id: generation of a reply stops there."""

    tokenizer: Any  # transformers.PreTrainedTokenizerFast
    tokenizer_id: str
    begin: tuple[int, ...]
    observe: tuple[int, ...]
    act: tuple[int, ...]
    end: int
    pad: int

    def observation_ids(self, text: str, first: bool) -> list[int]:
        """Ids that are new to the policy when it sees `text`."""
        return self.observations_ids([text], [first])[0]

    def observations_ids(self, texts: Sequence[str], first: Sequence[bool]) -> list[list[int]]:
        encoded = self._encode(texts)
        return [[*(self.begin if one else ()), *self.observe, *ids, *self.act] for ids, one in zip(encoded, first, strict=True)]

    def replies_ids(self, replies: Sequence[str]) -> list[list[int]]:
        """Ids of replies that no model of this tokenizer generated, end-of-turn included."""
        return [[*ids, self.end] for ids in self._encode(replies)]

    def decode_replies(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Texts of generated replies without their end-of-turn."""
        bare = [list(one[:-1]) if len(one) and one[-1] == self.end else list(one) for one in ids]
        return self.tokenizer._tokenizer.decode_batch(bare, skip_special_tokens=False)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        backend = self.tokenizer._tokenizer
        # Special tokens written as text by an environment or a person must stay text. Set each time: transformers sets it too.
        backend.encode_special_tokens = True
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def load_template(folder: Path) -> Template:
    """The template of a model or tokenizer folder (Hugging Face files).

    Our own tokenizers carry the pieces as special tokens. Another tokenizer gets plain text markers between the turns and
    its end-of-sequence token as the end of a turn. Raises RatchetError where there is no tokenizer or no such token.
    """
    from transformers import PreTrainedTokenizerFast

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise RatchetError(f"{folder}: no tokenizer.json; give a Hugging Face folder with a fast tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    tokenizer._tokenizer.no_truncation()  # a tokenizer.json may carry both; an episode is never cut or filled up
    tokenizer._tokenizer.no_padding()
    tokenizer_id = sha256_files([file])[:12]
    vocabulary = tokenizer.get_vocab()
    if all(mark in vocabulary for mark in SPECIAL_TOKENS.values()):
        ids = {name: vocabulary[mark] for name, mark in SPECIAL_TOKENS.items()}
        return Template(tokenizer, tokenizer_id, (ids["begin"],), (ids["observe"],), (ids["act"],), ids["end"], ids["pad"])
    return _text_template(folder, tokenizer, tokenizer_id)


def _text_template(folder: Path, tokenizer: Any, tokenizer_id: str) -> Template:
    if tokenizer.eos_token_id is None:
        raise RatchetError(f"{folder}: the tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json")
    encode = tokenizer._tokenizer.encode
    begin = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
    observe = tuple(encode("\n[observation]\n", add_special_tokens=False).ids)
    act = tuple(encode("\n[reply]\n", add_special_tokens=False).ids)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return Template(tokenizer, tokenizer_id, begin, observe, act, tokenizer.eos_token_id, pad)
