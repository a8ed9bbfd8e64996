"""The policy that does nothing: what it solves asks for no action, and says nothing about acting (methods §4, refusal skew)."""

from __future__ import annotations

from ratchet.envs.base import Task, Turn
from ratchet.policies.scripted import ScriptedPolicy


class DoNothing:
    """One episode of the same action, over and over."""

    def __init__(self, action: str) -> None:
        self.action = action

    def reset(self, task: Task, turn: Turn) -> None: ...

    def act(self, turn: Turn) -> tuple[str, str]:
        """(no thought, the action)."""
        return "", self.action


def do_nothing(action: str, action_format: str) -> ScriptedPolicy:
    """`action` is the benchmark's `null_action`."""
    return ScriptedPolicy(lambda seed, episode_id: DoNothing(action), policy_id="null", version="null", action_format=action_format, needs_admissible=False)
