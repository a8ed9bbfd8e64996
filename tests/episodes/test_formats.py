"""Replies to actions: what is in the format is found literally, whatever else stands in a reply is no action and no crash."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from ratchet.episodes.formats import FORMATS, format_reply, parse_reply
from ratchet.errors import RatchetError

NAMES = list(FORMATS)


def call(body: str, before: str = "", after: str = "") -> str:
    return f"{before}<tool_call>\n{body}\n</tool_call>{after}"


GOOD = '{"name": "act", "arguments": {"action": "go north"}}'
CASES = [
    ("plain", "> go to cabinet 3", "go to cabinet 3", True),
    ("plain", "thought\n> up", "up", True),
    ("plain", "> a\n> b", "b", False),
    ("plain", "up", "", False),
    ("plain", "> up\nafter", "", False),
    ("plain", ">  ", " ", False),
    ("plain", "", "", False),
    ("plain", "> up\n", "", False),
    ("tagged", "<think>a b</think><action>up</action>", "up", True),
    ("tagged", "<action>up</action>", "up", True),
    ("tagged", "<think>\na\n\nb</think>\n\n<action> up </action>\n", " up ", True),
    ("tagged", "hello <action>up</action>", "", False),
    ("tagged", "<think>a</think><action>up</action> bye", "", False),
    ("tagged", "<think>a</think> b <action>up</action>", "", False),
    ("tagged", "<action>a</action><action>b</action>", "", False),
    ("tagged", "<think><action>a</action></think><action>b</action>", "", False),
    ("tagged", "<think>a<action>up</action></think>", "", False),
    ("tagged", "</action>up<action>", "", False),
    ("tagged", "</think>a<think><action>up</action>", "", False),
    ("tagged", "<action></action>", "", False),
    ("tagged", "<action>up\ndown</action>", "", False),
    ("tagged", "<action>up", "", False),
    ("tool", call(GOOD), "go north", True),
    ("tool", call(GOOD, "I go.\n<think>or not</think>\n"), "go north", True),
    ("tool", call('{"arguments":{"action":"ça 🎈"},"name":"act"}', after="\n"), "ça 🎈", True),
    ("tool", call(GOOD, after="done"), "", False),
    ("tool", call(GOOD) + call(GOOD), "", False),
    ("tool", GOOD, "", False),
    ("tool", call('{"name": "act", "arguments": {"action": "say \\"hi\\""}}'), "", False),
    ("tool", call('{"name": "act", "arguments": {"action": "\\u0075p"}}'), "", False),
    ("tool", call('{"name": "act", "arguments": {"action": "up\ndown"}}'), "", False),
    ("tool", call('{"name": "act", "arguments": {"action": ""}}'), "", False),
    ("tool", call('{"name": "act", "arguments": {"action": ["up"]}}'), "", False),
    ("tool", call('{"name": "act", "arguments": {"action": "up", "force": true}}'), "", False),
    ("tool", call('{"name": "act", "arguments": {"action": "up", "action": "down"}}'), "", False),
    ("tool", call('{"name": "rm", "arguments": {"action": "up"}}'), "", False),
    ("tool", call('{"name": "act", "arguments": "{\'action\': \'up\'}"}'), "", False),
    ("tool", call("{'name': 'act', 'arguments': {'action': 'up'}}"), "", False),
    ("tool", call("__import__('os').system('true')"), "", False),
    ("tool", call("[" * 100000), "", False),
    ("tool", call("1" * 5000), "", False),
    ("tool", call("null"), "", False),
    ("tool", "</tool_call>" + GOOD + "<tool_call>", "", False),
]


@pytest.mark.parametrize(("name", "reply", "action", "ok"), CASES)
def test_the_action_is_a_literal_span_of_the_reply_or_there_is_none(name: str, reply: str, action: str, ok: bool) -> None:
    assert parse_reply(reply, name) == (action, ok)
    assert action in reply


@pytest.mark.parametrize("name", NAMES)
@given(st.text())
def test_no_text_is_a_crash(name: str, text: str) -> None:
    for reply in (text, f"> {text}", f"<action>{text}</action>", call(text), call(f'{{"name": "act", "arguments": {{"action": "{text}"}}}}')):
        action, ok = parse_reply(reply, name)
        assert action in reply and (action.strip() or not ok)


@pytest.mark.parametrize("name", NAMES)
@given(st.text(), st.text())
def test_a_reply_that_is_written_is_parsed_back_or_refused(name: str, thought: str, action: str) -> None:
    try:
        reply = format_reply(thought, action, name)
    except RatchetError as error:
        assert "env.action_format" in str(error) and "\n" not in str(error)
    else:
        assert parse_reply(reply, name) == (action, True) and thought in reply


@pytest.mark.parametrize("name", NAMES)
def test_usual_thoughts_and_actions_can_be_written(name: str) -> None:
    for thought in ("", "I need a cup 2, it's not in the drawer 1."):
        assert parse_reply(format_reply(thought, "pour water into flower pot 3", name), name) == ("pour water into flower pot 3", True)


def test_a_call_that_needs_an_escape_is_not_literal_and_says_what_to_take_instead() -> None:
    with pytest.raises(RatchetError, match="take plain or tagged"):
        format_reply("", 'say "hi"', "tool")
    assert parse_reply(call(json.dumps({"name": "act", "arguments": {"action": "ça"}})), "tool") == ("", False)


def test_the_instruction_shows_the_format() -> None:
    for name, mark in (("plain", "> "), ("tagged", "<action>"), ("tool", "<tool_call>")):
        assert mark in FORMATS[name].instruction and FORMATS[name].instruction == FORMATS[name].instruction.strip()
