"""The policy that knows nothing: any admissible command, each with the same probability."""

from __future__ import annotations

from ratchet.envs.base import Task, Turn
from ratchet.errors import RatchetError
from ratchet.rollout.noise import episode_key, uniforms


class RandomPolicy:
    """One episode's player (for `ScriptedPolicy`): step t picks with the uniform keyed by (seed, episode_id, t)."""

    def __init__(self, seed: int, episode_id: str) -> None:
        self.key = episode_key(seed, episode_id, "random policy")
        self.t = 0

    def reset(self, task: Task, turn: Turn) -> None:
        self.t = 0

    def act(self, turn: Turn) -> tuple[str, str]:
        """No thought and one admissible command. Raises RatchetError where the turn holds none."""
        if not turn.admissible:
            raise RatchetError("the random policy needs the admissible commands; make its EnvPool with admissible=True")
        draw = float(uniforms(self.key, self.t))
        self.t += 1
        return "", turn.admissible[int(draw * len(turn.admissible))]
