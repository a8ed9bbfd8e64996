"""Turns to tokens.

An episode is one sequence of independent pieces, each encoded by itself and never again:

    head · observation · act · reply · end | mid · observation · act · reply · end | mid · …

`head` holds the beginning and, for chat models, the instruction; `mid` opens a later turn; `act` closes an observation and
opens the reply. Because no piece is encoded together with the one before it, adding a turn never changes an earlier token
(prefix-stable), and what a policy generated is stored as the ids that it generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.episodes.chat import Pieces, chat_pieces
from ratchet.episodes.formats import FORMATS, ActionFormat
from ratchet.errors import RatchetError
from ratchet.files import read_json, sha256_files

SPECIAL_TOKENS = {"pad": "<pad>", "begin": "<begin>", "observe": "<observe>", "act": "<act>", "end": "<end>"}


@dataclass(frozen=True)
class Template:
    """The pieces for one tokenizer and action format: `*_ids` up to the last or from the first special token, `*_text` the plain
    text between that and the observation, which is encoded together with it, as a tokenizer would that reads all at once."""

    tokenizer: Any  # transformers.PreTrainedTokenizerFast
    tokenizer_id: str
    format: ActionFormat
    pieces: Pieces
    head_ids: tuple[int, ...]
    head_text: str
    mid_ids: tuple[int, ...]
    mid_text: str
    act_text: str
    act_ids: tuple[int, ...]
    end: int  # the end-of-turn that is written behind a reply
    ends: tuple[int, ...] = field(default=())  # every id at which generating a reply stops, `end` among them
    pad: int = 0

    def observation_ids(self, text: str, first: bool) -> list[int]:
        """Ids that are new to the policy when it sees `text`."""
        return self.observations_ids([text], [first])[0]

    def observations_ids(self, texts: Sequence[str], first: Sequence[bool]) -> list[list[int]]:
        whole = [(self.head_text if one else self.mid_text) + text + self.act_text for text, one in zip(texts, first, strict=True)]
        encoded = self._encode(whole)
        return [[*(self.head_ids if one else self.mid_ids), *ids, *self.act_ids] for ids, one in zip(encoded, first, strict=True)]

    def text_ids(self, text: str) -> list[int]:
        """Ids of a text that is written into an episode as it is, in which nothing is a special token."""
        return self._encode([text])[0]

    def replies_ids(self, replies: Sequence[str]) -> list[list[int]]:
        """Ids of replies that no model of this tokenizer generated, end-of-turn included."""
        return [[*ids, self.end] for ids in self._encode(replies)]

    def decode_replies(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Texts of generated replies without their end-of-turn."""
        bare = [list(one[:-1]) if len(one) and one[-1] in self.ends else list(one) for one in ids]
        return self.tokenizer._tokenizer.decode_batch(bare, skip_special_tokens=False)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        backend = self.tokenizer._tokenizer
        # Special tokens written as text by an environment or a person must stay text. Set each time: transformers sets it too.
        backend.encode_special_tokens = True
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def load_template(folder: Path, action_format: str = "plain") -> Template:
    """The template of a model or tokenizer folder (Hugging Face files), for replies in `action_format`.

    Our own tokenizers carry the pieces as special tokens. A tokenizer with a chat template gets that template's own pieces, the
    action format's instruction as system message. Any other gets plain text markers between the turns and its end-of-sequence
    token as the end of a turn. Raises RatchetError where there is no tokenizer or no such token, and for a chat template that
    cannot be made prefix-stable.
    """
    from transformers import PreTrainedTokenizerFast

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise RatchetError(f"{folder}: no tokenizer.json; give a Hugging Face folder with a fast tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    tokenizer._tokenizer.no_truncation()  # a tokenizer.json may carry both; an episode is never cut or filled up
    tokenizer._tokenizer.no_padding()
    one = FORMATS[action_format]
    vocabulary = tokenizer.get_vocab()
    if all(mark in vocabulary for mark in SPECIAL_TOKENS.values()):
        marks = SPECIAL_TOKENS
        pieces = Pieces(marks["begin"] + marks["observe"], marks["observe"], marks["act"], marks["end"])
    elif tokenizer.chat_template:
        pieces = chat_pieces(tokenizer, one.instruction, str(folder))
    elif tokenizer.eos_token_id is not None:
        observe = "\n[observation]\n"
        pieces = Pieces((tokenizer.bos_token or "") + observe, observe, "\n[reply]\n", tokenizer.eos_token)
    else:
        raise RatchetError(f"{folder}: the tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json")
    return _template(tokenizer, sha256_files([file])[:12], one, pieces, _stops(folder, tokenizer))


def _template(tokenizer: Any, tokenizer_id: str, action_format: ActionFormat, pieces: Pieces, stops: set[int]) -> Template:
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}

    def encode(text: str) -> Any:
        tokenizer._tokenizer.encode_special_tokens = False
        return tokenizer._tokenizer.encode(text, add_special_tokens=False)

    def opening(text: str) -> tuple[tuple[int, ...], str]:
        """(ids up to the last special token, text behind it)."""
        found = encode(text)
        last = max((at for at, id in enumerate(found.ids) if id in special), default=-1)
        return (tuple(found.ids[: last + 1]), text[found.offsets[last][1] :]) if last >= 0 else ((), text)

    def closing(text: str) -> tuple[str, tuple[int, ...]]:
        """(text before the first special token, ids from there on)."""
        found = encode(text)
        first = next((at for at, id in enumerate(found.ids) if id in special), None)
        return (text, ()) if first is None else (text[: found.offsets[first][0]], tuple(found.ids[first:]))

    head_ids, head_text = opening(pieces.head)
    mid_ids, mid_text = opening(pieces.mid)
    act_text, act_ids = closing(pieces.act)
    end = tokenizer.convert_tokens_to_ids(pieces.end)
    pad = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ends = (end, *sorted(stops - {end}))
    return Template(
        tokenizer, tokenizer_id, action_format, pieces, head_ids, head_text, mid_ids, mid_text, act_text, act_ids, end, ends, pad
    )


def _stops(folder: Path, tokenizer: Any) -> set[int]:
    """The ids at which the folder's own model stops: the tokenizer's end of sequence and those of generation_config.json."""
    file = folder / "generation_config.json"
    given = read_json(file).get("eos_token_id") if file.is_file() else None
    listed = given if isinstance(given, list) else [given]
    return {id for id in [*listed, tokenizer.eos_token_id] if isinstance(id, int)}
