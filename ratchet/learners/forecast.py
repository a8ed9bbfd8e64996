"""CoPE's targets (methods §4): at points of its own successes the policy is asked for the actions that it is about to take.

A target is a branch of its episode (models/branches.py): the history h_t up to the end of its last observation, PLAN, and the actions
a_t … a_{t+K} as the policy itself wrote them, token by token, without its thoughts. The actions' tokens and the end-of-turn behind
the last one carry the loss; PLAN and the line breaks between the actions are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from ratchet.episodes.schema import rows_of
from ratchet.episodes.spans import action_ids
from ratchet.episodes.template import SPECIAL_TOKENS, Template
from ratchet.learners.batches import FORECAST, PROMPT, Branch, Sequence, lists
from ratchet.learners.strata import stratum_factors
from ratchet.rollout.noise import episode_key, uniforms

SHORT, REMEMBERED = 64, 1 << 15  # tokens of a reply that may well come again, and how many of them are kept
PLAN_WORDS = "Plan ahead: write the next {} that you will take, one on each line and nothing else."


@dataclass(frozen=True)
class Plan:
    """How PLAN is said with a tokenizer's own pieces.

    Models from scratch read one more observation, which is the number of actions: two observations in a row are nowhere else in an
    episode, and no token has to be reserved that would change every tokenizer. Chat models read a sentence behind the observation in
    the same turn; models of plain text markers read it behind the marker of the reply.
    """

    template: Template
    behind: int  # tokens of a turn's prompt behind the point from which a branch goes on
    line: tuple[int, ...]  # between two actions

    @classmethod
    def of(cls, template: Template) -> Plan:
        return cls(template, len(template.act_ids), tuple(template.text_ids("\n")))

    def ids(self, count: int) -> list[int]:
        """The tokens that ask for `count` actions."""
        template = self.template
        if template.pieces.mid == SPECIAL_TOKENS["observe"]:
            return template.observation_ids(str(count), False)
        words = PLAN_WORDS.format(f"{count} actions" if count > 1 else "action")
        if template.act_ids:
            return [*template.text_ids(f"\n\n{words}{template.act_text}"), *template.act_ids]
        return template.text_ids(f"{words}\n")


@dataclass(frozen=True)
class Target:
    """What the policy is asked for at one point of an episode."""

    at: int
    actions: tuple[tuple[int, ...], ...]  # tokens of each
    steps: tuple[int, ...]  # where each was taken


@dataclass
class Forecaster:
    """Lays targets on sequences. Settings are those of `evolve_online.forecast` (ratchet/settings_online.py)."""

    template: Template
    horizon: int  # K: K + 1 actions are asked for
    gate: Literal["wins", "mixed", "all"]
    samples: int  # G, the constant divisor without `group_norm`
    seed: int  # of the prefixes that are drawn
    context: int  # positions that the model has
    target_norm: Literal["mean", "sum"] = "mean"
    group_norm: bool = True
    replace_invalid: bool = False
    prefixes: int | str = "all"  # `all`, or how many
    length_power: float = 0.0

    def __post_init__(self) -> None:
        self.plan = Plan.of(self.template)
        self._asked = {count: tuple(self.plan.ids(count)) for count in range(1, self.horizon + 2)}
        self._actions: dict[tuple[int, ...], tuple[int, ...] | None] = {}

    @property
    def longest_plan(self) -> int:
        """Tokens."""
        return max(len(ids) for ids in self._asked.values())

    def attach(
        self,
        sequences: Seq[Sequence],
        groups: Seq[str],
        steps: pa.Table,
        strata: Seq[str] | None = None,
        replayed: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Gives `sequences` their branches and their share of their group; returns what there was to ask for.

        `groups` and `strata` are those of each sequence, the latter where the loss is to be balanced; `steps` has the steps of all.
        `replayed` maps earlier successes of a group's task (episode id) to their weights: they are asked like its own successes and
        add to no number of groups.
        """
        earlier, own, found = replayed or {}, _Own(steps), _Found()
        members: dict[str, list[Sequence]] = {}
        for one, group in zip(sequences, groups, strict=True):
            members.setdefault(group, []).append(one)
        weights: dict[str, float] = {}
        for group in members.values():
            fresh = [one for one in group if one.episode_id not in earlier]
            for one in fresh:
                one.group_share = 1 / len(fresh)
            weights |= self._weights(fresh, [one for one in group if one.episode_id in earlier], earlier, own)
        mass = [weights.get(one.episode_id, 0.0) for one in sequences]
        if strata is not None:
            factors = stratum_factors(strata, groups, mass)
            mass = [value * factors.get(stratum, 1.0) for value, stratum in zip(mass, strata, strict=True)]
        for one, weight in zip(sequences, mass, strict=True):
            if one.episode_id in weights:
                one.branches = self._branches(one.episode_id, weight, own, found)
        return found.metrics(own)

    def _weights(self, fresh: Seq[Sequence], old: Seq[Sequence], earlier: Mapping[str, float], own: _Own) -> dict[str, float]:
        """S_g with the weight of each of its episodes: one over their number, times weights that stand in the numerator alone."""
        wins = [one for one in fresh if one.solved]
        chosen = {"all": fresh, "wins": wins, "mixed": wins if len(wins) < len(fresh) else []}[self.gate]
        names = [one.episode_id for one in (*chosen, *old)]
        if not names:
            return {}
        divisor = len(names) if self.group_norm else self.samples
        shortest = min(len(own.rows[name]) for name in names)
        return {name: earlier.get(name, 1.0) * (shortest / len(own.rows[name])) ** self.length_power / divisor for name in names}

    def _branches(self, name: str, weight: float, own: _Own, found: _Found) -> tuple[Branch, ...]:
        """The branches of one episode: a mean over its prefixes that have a target, or over as many of them as are drawn."""
        targets = [target for target in self.targets(name, own) if target is not None]
        found.skipped += len(own.rows[name]) - len(targets)
        if isinstance(self.prefixes, int) and self.prefixes < len(targets):
            order = np.argsort(uniforms(episode_key(self.seed, name, "prefixes"), np.arange(len(targets))), kind="stable")
            targets = [targets[index] for index in sorted(order[: self.prefixes])]
        found.add(name, targets)
        return tuple(self._branch(target, weight / len(targets)) for target in targets)

    def targets(self, name: str, own: _Own) -> list[Target | None]:
        """What is asked for before each step of an episode; None where it takes no action from there, or where it would not fit."""
        actions = [self._action(ids) for ids in own.replies(name)]
        taken = [action is not None and (valid or not self.replace_invalid) for action, valid in zip(actions, own.valid(name), strict=True)]
        out: list[Target | None] = []
        for t, point in enumerate(own.points(name, self.plan.behind)):
            reach = len(actions) if self.replace_invalid else min(t + self.horizon + 1, len(actions))
            steps = tuple(u for u in range(t, reach) if taken[u])[: self.horizon + 1]
            target = Target(point, tuple(actions[u] or () for u in steps), steps)
            out.append(target if steps and point >= 0 and point + 1 + len(self._ids(target)[0]) <= self.context else None)
        return out

    def _action(self, ids: tuple[int, ...]) -> tuple[int, ...] | None:
        if len(ids) > SHORT:
            return action_ids(self.template, ids)
        if ids not in self._actions:
            if len(self._actions) >= REMEMBERED:
                self._actions.clear()
            self._actions[ids] = action_ids(self.template, ids)
        return self._actions[ids]

    def _ids(self, target: Target) -> tuple[list[int], list[int]]:
        """(tokens, role of each) of a branch."""
        asked, line = self._asked[len(target.actions)], self.plan.line
        ids, role = list(asked), [PROMPT] * len(asked)
        for number, action in enumerate(target.actions):
            between = line if number else ()
            ids += [*between, *action]
            role += [PROMPT] * len(between) + [FORECAST] * len(action)
        return [*ids, self.template.end], [*role, FORECAST]

    def _branch(self, target: Target, weight: float) -> Branch:
        ids, role = self._ids(target)
        tokens = role.count(FORECAST) if self.target_norm == "mean" else 1
        return Branch(target.at, np.array(ids, np.int64), np.array(role, np.int8), weight / tokens)


class _Own:
    """The steps of a table by episode: what the policy wrote at each, and where that lies in the episode's sequence."""

    def __init__(self, steps: pa.Table) -> None:
        self.rows = rows_of(steps["episode_id"].to_pylist())
        self.read, self.wrote = lists(steps, "prompt_ids")[1], lists(steps, "reply_ids")
        self._valid, self.types = steps["valid"].to_pylist(), steps["action_type"].to_pylist()

    def replies(self, name: str) -> list[tuple[int, ...]]:
        flat, offsets = self.wrote
        return [tuple(flat[offsets[row] : offsets[row + 1]].tolist()) for row in self.rows[name]]

    def valid(self, name: str) -> list[bool]:
        return [bool(self._valid[row]) for row in self.rows[name]]

    def points(self, name: str, behind: int) -> list[int]:
        """Of each step the last token of its prompt but `behind`."""
        first, stop = self.rows[name].start, self.rows[name].stop
        read, wrote = np.diff(self.read[first : stop + 1]), np.diff(self.wrote[1][first : stop + 1])
        return (np.cumsum(read + wrote) - wrote - 1 - behind).tolist()


@dataclass
class _Found:
    """What is asked for in one batch."""

    targets: int = 0
    skipped: int = 0  # points of chosen episodes that have no target
    episodes: int = 0
    taken: list[tuple[str, int]] = field(default_factory=list)  # episode and step of each action of a target

    def add(self, name: str, targets: Seq[Target]) -> None:
        self.targets += len(targets)
        self.episodes += bool(targets)
        self.taken += [(name, step) for target in targets for step in target.steps]

    def metrics(self, own: _Own) -> dict[str, float]:
        """`forecast_mix_gap`: how far the types of the targets' actions are from those of all actions of the rollouts, in total
        variation (0: alike, 1: nothing in common)."""
        of_targets = Counter(own.types[own.rows[name].start + step] for name, step in self.taken)
        of_rollouts = Counter(one for one in own.types if one)
        counts = {"forecast_targets": self.targets, "forecast_skipped": self.skipped, "forecast_episodes": self.episodes}
        return {**counts, "forecast_mix_gap": _apart(of_targets, of_rollouts)}


def _apart(a: Counter[str], b: Counter[str]) -> float:
    """Total variation between two distributions; 0 where one is empty."""
    total_a, total_b = a.total(), b.total()
    return sum(abs(a[key] / total_a - b[key] / total_b) for key in {*a, *b}) / 2 if total_a and total_b else 0.0
