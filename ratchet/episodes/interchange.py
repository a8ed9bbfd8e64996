"""Episodes as conversations, for other tools: OpenAI-style chats and ETO-style trajectories in, chats out; one JSON object a line.

What comes in is demonstrations: texts only, each reply written in the wanted action format. A line that cannot be one is named with
its reason, and the rest is kept.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ratchet.episodes.files import table_of
from ratchet.episodes.formats import FORMATS, action_type, format_reply, parse_reply
from ratchet.errors import RatchetError
from ratchet.files import sha256_json

NAMESPACE = uuid.UUID("1b0f5c0e-6a53-5f0f-8f6e-3c6b5f6f2a40")
POLICY = "imported"
ROLES = {"system": "told", "user": "told", "human": "told", "tool": "told", "function": "told", "observation": "told"}
ROLES |= {"developer": "told", "assistant": "acts", "gpt": "acts", "agent": "acts"}
SOLVED_KEYS, SCORE_KEYS, ID_KEYS = ("solved", "success", "won"), ("score", "reward", "final_reward"), ("task_id", "id", "item_id")
_REACT = re.compile(r"\s*(?:Thought:\s*(?P<thought>.*?)\s*)?^\s*Action:[ \t]*(?P<action>[^\n]+?)\s*\Z", re.DOTALL | re.MULTILINE | re.IGNORECASE)
_THINK = re.compile(r"</?think>")


class Unusable(ValueError):
    """Why a line is no demonstration."""


@dataclass
class Import:
    """What a file held: rows, and for each line that was left out its place and the reason."""

    episodes: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """(episodes, steps)."""
        return table_of("episodes", self.episodes), table_of("steps", self.steps)


def read_file(path: Path, env: str, action_format: str) -> Import:
    """Reads JSONL, or one JSON list (as ETO's files are). `env` is used where a line does not name its own.

    Raises RatchetError for a file that is missing, no text, or holds nothing usable.
    """
    found, seen = Import(), {}
    for where, item in _items(path):
        try:
            value = json.loads(item) if isinstance(item, str) else item
            key = sha256_json(value)
            if key in seen:
                raise Unusable(f"is the same as {seen[key]}")
            episode, steps = rows_of(value, env, action_format, f"{path.stem}/{where.split()[-1]}")
        except (Unusable, RatchetError, ValueError, RecursionError) as error:
            found.problems.append(f"{where}: {_reason(error)}")
            continue
        seen[key] = where
        found.episodes.append(episode)
        found.steps += steps
    if not found.episodes:
        raise RatchetError(f"{path}: no line is a conversation with actions ({'; '.join(found.problems[:2]) or 'it is empty'}); nothing imported")
    return found


def rows_of(value: Any, env: str, action_format: str, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The (episode, steps) rows of one conversation. Raises Unusable, or RatchetError where the format cannot hold a reply."""
    turns = _turns(_messages(value))
    episode_id = str(uuid.uuid5(NAMESPACE, sha256_json(value)))
    solved, score = _outcome(value)
    task_id = next((str(value[key]) for key in ID_KEYS if value.get(key) not in (None, "")), name)
    episode = {
        "episode_id": episode_id,
        "env": str(value.get("env") or env),
        "env_version": "imported",
        "task_id": task_id,
        "split": "train",
        "stratum": str(value.get("stratum") or "imported"),
        "cluster": task_id,
        "policy_id": POLICY,
        "group_id": episode_id,
        "solved": solved,
        "score": score,
        "terminated": True,
        "truncated": False,
        "n_steps": len(turns),
        "n_tokens": 0,
        **dict.fromkeys(("round", "iteration", "sample", "seed"), 0),
    }
    return episode, [_step(episode_id, t, *turn, action_format, score if t == len(turns) - 1 else 0.0) for t, turn in enumerate(turns)]


def conversation(episode: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """An episode as an OpenAI-style chat, with what `read_file` needs to bring it back."""
    messages = [
        message
        for step in steps
        for message in ({"role": "user", "content": step["observation"]}, {"role": "assistant", "content": step["reply"]})
    ]
    names = ("env", "task_id", "stratum", "split", "solved", "score", "policy_id", "round", "iteration")
    return {"id": episode["episode_id"], **{name: episode[name] for name in names}, "messages": messages}


def _items(path: Path) -> Iterator[tuple[str, Any]]:
    """("line 3", text) of JSONL, or ("item 3", value) of a list."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise RatchetError(f"{path}: cannot be read ({error.strerror}); give a JSONL file") from None
    if text.lstrip().startswith("["):
        try:
            yield from ((f"item {number}", item) for number, item in enumerate(json.loads(text), start=1))
        except (ValueError, RecursionError) as error:
            raise RatchetError(f"{path}: begins as a JSON list and is none ({error}); correct it, or write one object a line") from None
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number}", line


def _messages(value: Any) -> list[tuple[str, str]]:
    """(`told` or `acts`, text) of each message."""
    if not isinstance(value, dict):
        raise Unusable(f"is {type(value).__name__}, not an object with messages or conversations")
    given = value.get("messages") or value.get("conversations")
    if not isinstance(given, list):
        raise Unusable("has no list `messages` or `conversations`")
    found = []
    for place, one in enumerate(given):
        role = one.get("role", one.get("from")) if isinstance(one, dict) else None
        if role not in ROLES:
            raise Unusable(f"message {place}: role {role!r} is none of {', '.join(ROLES)}")
        text = _text(one, place)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise Unusable(f"message {place}: is no UTF-8")
        found.append((ROLES[role], text))
    return found


def _text(message: dict[str, Any], place: int) -> str:
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict) and part.get("type") == "text")
    if message.get("tool_calls"):
        return _called(message["tool_calls"], content or "", place)
    if not isinstance(content, str):
        raise Unusable(f"message {place}: its content is no text")
    return content


def _called(calls: Any, content: str, place: int) -> str:
    """A native tool call as a reply in ReAct's words, so that there is one way to read actions."""
    if not isinstance(calls, list) or len(calls) != 1 or not isinstance(calls[0], dict):
        raise Unusable(f"message {place}: {len(calls) if isinstance(calls, list) else 'no'} tool calls in one message; one action a turn")
    function = calls[0].get("function") or {}
    arguments = function.get("arguments")
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    only = arguments.get("action") if isinstance(arguments, dict) and set(arguments) == {"action"} else None
    action = only if isinstance(only, str) else f"{function.get('name')} {json.dumps(arguments, ensure_ascii=False)}"
    return f"Thought: {content.strip()}\nAction: {action}" if content.strip() else f"Action: {action}"


def _turns(messages: list[tuple[str, str]]) -> list[tuple[str, str, str, str]]:
    """(observation, thought, action, reply) of each turn; what was told before the first action is its observation.

    Where any reply marks its action, one at the beginning that does not is an acknowledgement and left out; where none does, a reply
    is the action.
    """
    marked = any(_marked(text) is not None for who, text in messages if who == "acts")
    turns: list[tuple[str, str, str, str]] = []
    told: list[str] = []
    for place, (who, text) in enumerate(messages):
        if who == "told":
            told.append(text)
            continue
        said = _marked(text) if marked else _bare(text)
        if said is None and not turns and marked:
            continue
        if said is None:
            raise Unusable(f"message {place}: holds no action")
        if not told:
            raise Unusable(f"message {place}: an action that nothing was observed before")
        turns.append(("\n\n".join(told), *said, text))
        told = []
    if not turns:
        raise Unusable("holds no action")
    return turns


def _marked(text: str) -> tuple[str, str] | None:
    """(thought, action) of a reply in one of our formats or in ReAct's words."""
    for name in FORMATS:
        action, well = parse_reply(text, name)
        if well:
            return _thought_before(text, action), action
    found = _REACT.fullmatch(text)
    return ((found["thought"] or "").strip(), found["action"].strip()) if found else None


def _thought_before(text: str, action: str) -> str:
    before = text[: text.rindex(action)]
    for mark in ("<action>", "<tool_call>", "\n> "):
        before = before.rpartition(mark)[0] if mark in before else before
    return _THINK.sub("", before).strip() if before.strip() != ">" else ""


def _bare(text: str) -> tuple[str, str] | None:
    action = text.strip()
    return ("", action) if action and "\n" not in action else None


def _outcome(value: dict[str, Any]) -> tuple[bool, float]:
    """(solved, score in [0, 1]); a conversation that says nothing is a demonstration that solved its task."""
    solved = next((value[key] for key in SOLVED_KEYS if key in value), None)
    score = next((value[key] for key in SCORE_KEYS if key in value), None)
    if solved is not None and not isinstance(solved, bool):
        raise Unusable(f"solved: {solved!r} is neither true nor false")
    if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1):
        raise Unusable(f"score: {score!r} is no number from 0 to 1")
    if solved is None:
        solved = score is None or score >= 1
    return solved, float(score if score is not None else solved)


def _step(
    episode_id: str, t: int, observation: str, thought: str, action: str, reply: str, action_format: str, score: float
) -> dict[str, Any]:
    literal, well = parse_reply(reply, action_format)
    written = reply if well and literal == action else format_reply(thought, action, action_format)
    return {
        "episode_id": episode_id,
        "t": t,
        "observation": observation,
        "reply": written,
        "action": action,
        "action_type": action_type(action),
        **{name: [] for name in ("prompt_ids", "reply_ids", "logprobs", "entropy")},
        "policy_version": POLICY,
        "reward": score,
        "score": score,
        "format_ok": True,
        "valid": True,
        "repeated": False,
    }


def _reason(error: BaseException) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({error})"
    return str(error) or type(error).__name__
