"""A tokenizer for models from scratch: byte-level BPE in which names of things (`cabinet 3`) are single tokens.

With names in one token a 1.1M-parameter model does not have to spell what it looks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ratchet.episodes.template import SPECIAL_TOKENS

LARGEST_NUMBER = 99  # of a name; a kind with larger ones is a quantity (`seed 20000`), not one thing among others
ENTITY = re.compile(r"(?<![a-z])([a-z]+) (\d+)\b")


def entity_names(texts: Iterable[str]) -> list[str]:
    """All names `kind number` in the texts, each kind's numbers filled up from 1 to its largest, and the kinds; sorted.

    A kind with a number above LARGEST_NUMBER is left out: it counts something, and would make a token of every number below.
    """
    largest: dict[str, int] = {}
    for text in texts:
        for kind, number in ENTITY.findall(text):
            largest[kind] = max(largest.get(kind, 0), int(number))
    largest = {kind: top for kind, top in largest.items() if top <= LARGEST_NUMBER}
    names = [f"{kind} {number}" for kind, top in largest.items() for number in range(1, top + 1)]
    return sorted([*largest, *names])


def train_tokenizer(texts: list[str], vocab_size: int, folder: Path, words: Sequence[str] = ()) -> int:
    """Trains on `texts`, writes a Hugging Face tokenizer folder, returns the vocabulary's size.

    `vocab_size` bounds the BPE part (256 bytes included); names, `words` (a small world's whole vocabulary, one token each) and special
    tokens come on top. Deterministic.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    names = sorted({*entity_names(texts), *words})
    tokenizer = Tokenizer(models.BPE())
    # Merges may cross blanks but no punctuation: what is left between names is mostly the environment's fixed phrases.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r" ?[.,:;!>\n=-]+"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = list(SPECIAL_TOKENS.values())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size + len(specials),
        min_frequency=20,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Names and kinds have tokens of their own: spend no merges on them.
    between = re.compile("|".join(f" {re.escape(name)}" for name in sorted(names, key=len, reverse=True)) or r"(?!)")
    tokenizer.train_from_iterator([part for text in texts for part in between.split(text) if part], trainer)
    # The leading blank belongs to the name: `go to cabinet 3` is `go`, ` to`, ` cabinet 3`.
    # A name that begins a text has no blank and gets a second token.
    first = {found.group() for text in texts if (found := ENTITY.match(text))} | ({text.split(" ", 1)[0] for text in texts} & {*words})
    leading = [name for name in names if name in first]
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in [*(f" {name}" for name in names), *leading]])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS["begin"],
        eos_token=SPECIAL_TOKENS["end"],
        pad_token=SPECIAL_TOKENS["pad"],
        clean_up_tokenization_spaces=False,
    )
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(folder))
    return len(fast)
