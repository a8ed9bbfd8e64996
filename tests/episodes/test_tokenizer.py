"""The tokenizer of models from scratch: one token a name, the same bytes every time."""

from __future__ import annotations

from pathlib import Path

from ratchet.episodes.template import load_template
from ratchet.episodes.tokenizer import entity_names, train_tokenizer
from tests.models import tiny


def tokens(text: str) -> list[str]:
    backend = tiny.template().tokenizer._tokenizer
    return [backend.decode([i], skip_special_tokens=False) for i in backend.encode(text, add_special_tokens=False).ids]


def test_names_are_filled_up_to_the_largest_number() -> None:
    assert entity_names(["a cabinet 3 and desk 1", "x"]) == ["cabinet", "cabinet 1", "cabinet 2", "cabinet 3", "desk", "desk 1"]
    assert entity_names(["take coin 2 for 123456789", "the year 2026"]) == ["coin", "coin 1", "coin 2"], "a quantity is no name"


def test_a_name_is_one_token_wherever_it_stands() -> None:
    assert " cabinet 3" in tokens("go to cabinet 3") and " cabinet 11" in tokens("a cabinet 11, and")  # never `cabinet 1` + `1`
    assert tokens("cabinet 3")[0] == "cabinet 3"
    assert tokens("cabinet 3 cabinet 3") == ["cabinet 3", " cabinet 3"]


def test_training_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_tokenizer(tiny.TEXTS, 270, tmp_path / name)
    first = {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()}
    assert first == {file.name: file.read_bytes() for file in (tmp_path / "b").iterdir()}
    assert load_template(tmp_path / "a").tokenizer_id == load_template(tmp_path / "b").tokenizer_id


def test_the_size_is_that_of_the_vocabulary_and_covers_every_id(tmp_path: Path) -> None:
    size = train_tokenizer(tiny.TEXTS, 270, tmp_path)
    vocabulary = load_template(tmp_path).tokenizer.get_vocab()
    assert size == len(vocabulary) == max(vocabulary.values()) + 1
