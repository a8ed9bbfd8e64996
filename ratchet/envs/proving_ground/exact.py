"""A task solved by dynamic programming: exact values of states and actions under optimal play, and of any policy.

The transitions are those of the rules themselves, so nothing is said twice. A house has some hundred states that a task can be won
from; all others are worth 0 for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ratchet.envs.proving_ground.rules import State, World

GAMMA = 0.95


@dataclass(frozen=True)
class Quality:
    """Values before and after an action, their difference, and its sign: 1 closer to success, 0 a detour, −1 a mistake."""

    before: float
    after: float

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def sign(self) -> int:
        return (self.after > self.before) - (self.after < self.before)


class Solution:
    """Exact values of one world. Values are those of the state *after* what has been done: V(s), and Q(s, a) = V(s′)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.next: dict[State, dict[str, State]] = {}
        before: dict[State, list[State]] = {}
        waiting = deque([world.begin])
        while waiting:
            state = waiting.popleft()
            if state in self.next or state.over or state.spoiled:
                continue
            self.next[state] = {action: world.act(state, action)[0] for action in world.admissible(state)}
            for after in self.next[state].values():
                before.setdefault(after, []).append(state)
                waiting.append(after)
        self._steps = dict.fromkeys((state for state in before if world.solved(state)), 0)
        waiting = deque(self._steps)
        while waiting:
            state = waiting.popleft()
            for earlier in before.get(state, ()):
                if earlier not in self._steps:
                    self._steps[earlier] = self._steps[state] + 1
                    waiting.append(earlier)

    def steps(self, state: State) -> int | None:
        """Fewest actions from here to success, `finish` included; 0 where it is solved, None where it is lost."""
        return self._steps.get(state)

    def value(self, state: State, *, gamma: float = GAMMA, left: int | None = None) -> float:
        """γ^steps under optimal play, 0 where it is lost or takes more than the `left` actions that the episode still has."""
        steps = self.steps(state)
        return 0.0 if steps is None or (left is not None and steps > left) else gamma**steps

    def quality(self, state: State, action: str, *, gamma: float = GAMMA, left: int | None = None) -> Quality:
        """Of any text as an action. With `left` an action that does nothing may lose what the budget no longer allows."""
        after = self.world.act(state, action)[0]
        return Quality(self.value(state, gamma=gamma, left=left), self.value(after, gamma=gamma, left=None if left is None else left - 1))

    def best(self, state: State) -> list[str]:
        """The actions of optimal play, [] at an end and where it is lost."""
        steps = self.steps(state)
        if not steps:
            return []
        return [action for action, after in self.next[state].items() if self._steps.get(after) == steps - 1]

    def policy_value(self, policy: Callable[[State], Mapping[str, float]], *, horizon: int, gamma: float = 1.0) -> float:
        """Exact expected γ^(length) of success within `horizon` actions of a policy that gives each state's actions their probabilities."""
        values = dict.fromkeys(self.next, 0.0)
        chosen = {state: policy(state) for state in self.next}
        for _ in range(horizon):
            values = {
                state: gamma * sum(p * self._after(values, self.next[state].get(action, state)) for action, p in chosen[state].items())
                for state in self.next
            }
        return values[self.world.begin]

    def _after(self, values: Mapping[State, float], state: State) -> float:
        return 1.0 if self.world.solved(state) else values.get(state, 0.0)


@lru_cache(maxsize=1024)
def solve(world: World) -> Solution:
    """The solution of a world, kept for the next time."""
    return Solution(world)
