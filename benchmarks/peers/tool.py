"""An environment of ours as a tool that TRL calls, without TRL's knowing the end of an episode.

A model from scratch writes no tool calls. TRL takes replies apart by the tokenizer's `response_template`; ours is one field without an
opening mark, so all that is written becomes one call of the tool `act`. TRL ends an episode at a reply without a call, or at a tool
result that does not fit into `max_completion_length`: it drops such a result, and the episode ends with the reply before it. So where
our environment ends an episode, the tool returns a text that never fits, and the episode has the same turns and tokens as ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.peers.world import END
from ratchet.envs.base import Environment, Task, Turn
from ratchet.episodes.formats import parse_reply

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<act>",
    "fields": {
        "tool_calls": {
            "content": "text",
            "repeats": True,
            "transform": {"type": "function", "function": {"name": "act", "arguments": {"action": "{content}"}}},
        }
    },
}


class Tool:
    """An environment of ours as TRL wants it: `reset` gives the first observation, the public method is the tool."""

    def __init__(
        self, world: Environment, tasks: dict[str, Task], turns: int, too_long: str, parse: Callable[[str], str], max_invalid: int | None = None
    ) -> None:
        """`too_long` is what ends an episode; `parse` finds the action in a reply."""
        self._world, self._tasks, self._most, self._too_long = world, tasks, turns, too_long
        self._parse, self._max_invalid = parse, max_invalid
        self._last = Turn("", ())
        self._turns = self._invalid = 0

    def reset(self, task: str, **_: Any) -> str:
        self._turns = self._invalid = 0
        self._last = self._world.reset(self._tasks[task])
        return self._last.observation

    def act(self, action: str) -> str:
        """Takes one action in the environment.

        Args:
            action: What the agent writes.

        Returns:
            What the agent sees.
        """
        self._last = self._world.step(self._parse(action))
        self._turns += 1
        self._invalid = 0 if self._last.valid else self._invalid + 1
        over = self._last.done or self._turns >= self._most or self._invalid == self._max_invalid
        return self._too_long if over else self._last.observation

    def get_reward(self) -> float:
        return self._last.score


def action_of(reply: str) -> str:
    """As LanguageModelPolicy finds it: a reply that was cut before its end holds no action."""
    text, ended, _ = reply.partition(END)
    return parse_reply(text)[0] if ended else ""
