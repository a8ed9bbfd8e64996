"""Action formats: how a reply says its action.

| format | a reply |
|---|---|
| `plain` | a thought, then `> ACTION` as the last line |
| `tagged` | `<think>THOUGHT</think><action>ACTION</action>` |
| `tool` | a thought, then the call of the tool `act` as JSON in `<tool_call>`, as chat models are taught it |

The action is a literal span of its reply in all of them. A call whose JSON needs an escape is not, so it counts as a broken
format. Replies are taken apart by string search and `json`, never evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ratchet.errors import RatchetError

ACTION_MARK = "> "
TOOL = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "Takes one action in the environment.",
        "parameters": {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
    },
}
_TASK = "You act in a text environment, one action a turn, until the task is done."
_NOTHING = ("", False)
_ACTION_KEY = re.compile(r'"action"\s*:\s*"')


@dataclass(frozen=True)
class ActionFormat:
    """`parse(reply)` → (`action`, `format_ok`), `write(thought, action)` → reply; `instruction` tells a chat model of it.

    `find(reply)` → where its action lies (start and end, in characters), None where it has none.
    """

    name: str
    instruction: str
    parse: Callable[[str], tuple[str, bool]]
    write: Callable[[str, str], str]
    find: Callable[[str], tuple[int, int] | None]

    def reply(self, thought: str, action: str) -> str:
        """The reply that `parse` takes apart again. Raises RatchetError where the format cannot hold this thought or action."""
        text = self.write(thought, action)
        if self.parse(text) != (action, True):
            raise RatchetError(
                f"env.action_format: {self.name} cannot hold the action {action[:80]!r} after the thought {thought[:80]!r} literally; "
                f"take {' or '.join(name for name in FORMATS if name != self.name)}"
            )
        return text


def _parse_plain(reply: str) -> tuple[str, bool]:
    """The literal text behind `> ` on the reply's last line; in the format where it is the only such line, and not empty."""
    marks = [line for line in reply.split("\n") if line.startswith(ACTION_MARK)]
    last = reply.rsplit("\n", 1)[-1]
    if not last.startswith(ACTION_MARK):
        return _NOTHING
    action = last[len(ACTION_MARK) :]
    return action, len(marks) == 1 and bool(action.strip())


def _find_plain(reply: str) -> tuple[int, int] | None:
    action, _ = _parse_plain(reply)
    return (len(reply) - len(action), len(reply)) if action.strip() else None


def _write_plain(thought: str, action: str) -> str:
    return f"{thought}\n{ACTION_MARK}{action}" if thought else f"{ACTION_MARK}{action}"


def _between(text: str, name: str) -> tuple[str, str, str] | None:
    """(before, inside, after) of the text's only `<name>…</name>`; None where it does not hold exactly one."""
    left, right = f"<{name}>", f"</{name}>"
    if text.count(left) != 1 or text.count(right) != 1:
        return None
    before, _, rest = text.partition(left)
    inside, found, after = rest.partition(right)
    return (before, inside, after) if found else None


def _parse_tagged(reply: str) -> tuple[str, bool]:
    """One action in its tags at the end, before it nothing or one thought in its tags."""
    acted = _between(reply, "action")
    if acted is None:
        return _NOTHING
    before, action, after = acted
    if before.strip():
        thought = _between(before, "think")
        if thought is None or thought[0].strip() or thought[2].strip():
            return _NOTHING
    if after.strip() or "\n" in action or not action.strip():
        return _NOTHING
    return action, True


def _find_tagged(reply: str) -> tuple[int, int] | None:
    action, found = _parse_tagged(reply)
    start = reply.find("<action>") + len("<action>")
    return (start, start + len(action)) if found else None


def _write_tagged(thought: str, action: str) -> str:
    return f"<think>{thought}</think><action>{action}</action>" if thought else f"<action>{action}</action>"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _parse_tool(reply: str) -> tuple[str, bool]:
    """One call at the end, exactly `{"name": "act", "arguments": {"action": "…"}}`, without escapes."""
    called = _between(reply, "tool_call")
    if called is None or called[2].strip() or "\\" in called[1]:
        return _NOTHING
    try:
        call = json.loads(called[1], object_pairs_hook=_once)
    except (ValueError, RecursionError):  # no JSON, or nested without end: a broken format, as any other text
        return _NOTHING
    arguments = call.get("arguments") if isinstance(call, dict) and set(call) == {"name", "arguments"} else None
    if not isinstance(arguments, dict) or set(arguments) != {"action"} or call["name"] != TOOL["function"]["name"]:
        return _NOTHING
    action = arguments["action"]
    return (action, True) if isinstance(action, str) and action.strip() else _NOTHING


def _find_tool(reply: str) -> tuple[int, int] | None:
    """Of the first call, also where others follow, though such a reply is no action to the environment."""
    end = reply.find("</tool_call>") + len("</tool_call>")
    action, found = _parse_tool(reply[:end])
    if not found:
        return None
    [key] = _ACTION_KEY.finditer(reply, reply.index("<tool_call>"), end)  # strings without escapes hold no quotation mark
    return key.end(), key.end() + len(action)


def _write_tool(thought: str, action: str) -> str:
    call = json.dumps({"name": TOOL["function"]["name"], "arguments": {"action": action}}, ensure_ascii=False)
    return (f"{thought}\n" if thought else "") + f"<tool_call>\n{call}\n</tool_call>"


_CALL = '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
FORMATS = {
    one.name: one
    for one in (
        ActionFormat(
            "plain",
            f'{_TASK} Reply with a short thought on one line, then the action on a last line of its own that begins with "> ".',
            _parse_plain,
            _write_plain,
            _find_plain,
        ),
        ActionFormat(
            "tagged",
            f"{_TASK} Reply with <think>a short thought</think><action>one action</action> and nothing else.",
            _parse_tagged,
            _write_tagged,
            _find_tagged,
        ),
        ActionFormat(  # Hermes' and Qwen's wording, which their models were trained on
            "tool",
            f"{_TASK} Reply with a short thought, then call `act` once.\n\n# Tools\n\nYou may call one or more functions to assist with the "
            "user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
            f"{json.dumps(TOOL)}\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
            f"<tool_call></tool_call> XML tags:\n{_CALL}",
            _parse_tool,
            _write_tool,
            _find_tool,
        ),
    )
}


def parse_reply(reply: str, action_format: str = "plain") -> tuple[str, bool]:
    """(`action`, `format_ok`) of a reply. The action is a literal span of it, "" where there is none."""
    return FORMATS[action_format].parse(reply)


def format_reply(thought: str, action: str, action_format: str = "plain") -> str:
    """The reply that `parse_reply` takes apart again; RatchetError where the format cannot hold it."""
    return FORMATS[action_format].reply(thought, action)


def action_type(action: str) -> str:
    """The action's verb: its first word ("go", "open", …), "" for none."""
    return action.split(" ", 1)[0] if action.strip() else ""
