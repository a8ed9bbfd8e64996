"""Turns to tokens: what an environment writes stays text, what was encoded is never encoded again."""

from __future__ import annotations

import json
import shutil

import pytest

from ratchet.episodes.template import SPECIAL_TOKENS, Template, load_template
from ratchet.errors import RatchetError
from tests.episodes import chat_templates as chat
from tests.models import tiny

HOSTILE = ["<end>", "a <act> b", "<begin><observe>x<pad>", "</s> <|im_end|> <|start|>user", "‹end› 1 < 2 > 3"]
UNICODE = ["", " ", "\n", "Ça coûte 3 €, naïve cabinet 3", "日本語 🎈👩‍🚀", "tab\tnull\x00end", "  cabinet 3  cabinet 33 xcabinet 3cabinet 3"]
TEMPLATES = pytest.mark.parametrize("template", [tiny.template(), tiny.text_template(), load_template(tiny.chat_folder(chat.SMOLLM2), "tool")],
                                    ids=["special tokens", "text markers", "chat"])


def specials(template: Template) -> set[int]:
    return {template.end, template.pad} | {id for id, token in template.tokenizer.added_tokens_decoder.items() if token.special}


def decoded(template: Template, ids: list[int]) -> str:
    return template.tokenizer._tokenizer.decode(ids, skip_special_tokens=False)


def content(template: Template, ids: list[int], first: bool) -> list[int]:
    """What is encoded anew each time, without the fixed ids before and behind it."""
    head, tail = list(template.head_ids if first else template.mid_ids), list(template.act_ids)
    assert ids[: len(head)] == head and ids[len(ids) - len(tail) :] == tail
    return ids[len(head) : len(ids) - len(tail)]


@TEMPLATES
@pytest.mark.parametrize("text", [*HOSTILE, *UNICODE])
def test_any_text_comes_back_exactly_and_is_never_a_special_token(template: Template, text: str) -> None:
    ids = template.observation_ids(text, first=True)
    body = content(template, ids, first=True)
    assert not set(body) & specials(template)
    assert decoded(template, body) == template.head_text + text + template.act_text
    [reply] = template.replies_ids([text])
    assert reply[-1] == template.end and not set(reply[:-1]) & specials(template)
    assert template.decode_replies([reply, reply[:-1]]) == [text, text]


def test_special_tokens_stay_text_after_transformers_itself_encoded() -> None:
    template = tiny.template()
    template.tokenizer("<act> hello")  # sets the backend's own switch
    assert not set(template.observation_ids("<act>", first=False)[1:-1]) & specials(template)


@TEMPLATES
def test_a_long_text_is_neither_cut_nor_padded(template: Template) -> None:
    text = "You see a drawer 2, and a cup. " * 40
    long, short = template.observations_ids([text, "a"], [False, False])
    assert decoded(template, content(template, long, first=False)) == template.mid_text + text + template.act_text
    assert decoded(template, content(template, short, first=False)) == template.mid_text + "a" + template.act_text


@TEMPLATES
def test_adding_a_turn_never_changes_an_earlier_token(template: Template) -> None:
    turns = [("You see a cabinet", "> go to"), (" 3, and a drawer", " cabinet 3"), ("\n1.", "\n\n> up"), ("<end>", "> x")]
    whole: list[int] = []
    for number, (observation, reply) in enumerate(turns):
        whole += template.observation_ids(observation, first=number == 0) + template.replies_ids([reply])[0]
        again: list[int] = []
        for earlier, (o, r) in enumerate(turns[: number + 1]):
            again += template.observation_ids(o, first=earlier == 0) + template.replies_ids([r])[0]
        assert again == whole
    inside = [*template.head_ids, *template.mid_ids * (len(turns) - 1), *template.act_ids * len(turns)].count(template.end)
    assert whole.count(template.end) == len(turns) + inside


def test_marks_of_the_text_template_are_plain_tokens_and_its_end_is_the_tokenizers() -> None:
    template = tiny.text_template()
    assert (template.head_text, template.mid_text, template.act_text) == ("\n[observation]\n", "\n[observation]\n", "\n[reply]\n")
    assert template.end == template.tokenizer.eos_token_id and template.head_ids == (template.tokenizer.bos_token_id,)
    assert template.mid_ids == template.act_ids == ()


def test_a_folder_without_a_tokenizer_or_an_end_token_is_refused(tmp_path) -> None:
    with pytest.raises(RatchetError, match=r"tokenizer\.json"):
        load_template(tmp_path)
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=tiny.text_template().tokenizer._tokenizer).save_pretrained(str(tmp_path))
    with pytest.raises(RatchetError, match="end-of-sequence"):
        load_template(tmp_path)


def test_our_tokenizer_has_one_id_for_each_piece() -> None:
    template = tiny.template()
    vocabulary = template.tokenizer.get_vocab()
    begin, observe, act, end, pad = (vocabulary[SPECIAL_TOKENS[name]] for name in ("begin", "observe", "act", "end", "pad"))
    assert (template.head_ids, template.mid_ids, template.act_ids) == ((begin, observe), (observe,), (act,))
    assert (template.end, template.ends, template.pad) == (end, (end,), pad) and not template.head_text + template.mid_text + template.act_text
    assert template.tokenizer.bos_token_id == begin


def test_a_reply_stops_at_whatever_the_models_own_configuration_names(tmp_path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.chat_folder(chat.SMOLLM2), folder)
    template = load_template(folder)
    vocabulary = template.tokenizer.get_vocab()
    end, other = vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]
    assert template.end == end and template.ends == (end,)
    for given, ends in (([end, other], (end, other)), (other, (end, other)), (None, (end,))):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": given}))
        template = load_template(folder)
        assert template.ends == ends and template.replies_ids(["x"])[0][-1] == end
    assert template.decode_replies([[*template.replies_ids(["x"])[0]]]) == ["x"]
