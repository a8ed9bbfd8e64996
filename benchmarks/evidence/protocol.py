"""A protocol: what will be run, on what it will be judged, and how, written down before anything is run.

It is a YAML file in benchmarks/protocols. Its hash stands in every result, so a result that was made under other rules is seen.

    question: what is asked, in a sentence
    statistic: how it is answered, in a sentence
    worlds:                  # where it is played: differences to params.yaml, and the seed of games, demonstrations and warm start
      NAME: {preset: quickstart, seed: 1, set: {…}}
    arms:                    # what is compared: differences on top of the world's
      NAME: {world: NAME, seeds: 5, label: GRPO, set: {…}, tune: [{…}, {…}], like: ARM, smoke: true, meter_of: NAME}
    tuning: {panel: select, seeds: [101]}
    final: {panel: test}
    quick: {seeds: 2, tune: 1, set: {…}, without: [ARM]}   # --quick: shows that it works

An arm with `tune` is run with each of these settings, once a tuning seed, and keeps the one with the most success on the tuning
panel (the first of equals); arms that are tuned have equally many to choose from. `like` takes the choice of another arm. `meter_of` is
the world whose pool the arm's meter is fitted on, where that is not its own. The final panel is played by the chosen settings alone, once
a seed: 1, 2, …
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from ratchet.errors import RatchetError
from ratchet.files import sha256_json
from ratchet.section import Section
from ratchet.yaml_files import read_yaml

Differences = dict[str, Any]


class World(Section):
    """Where arms are played; they share its games, demonstrations and warm start."""

    preset: str
    seed: int = 1
    set: Differences = Field(default_factory=dict)


class Arm(Section):
    """One method: nothing but settings."""

    world: str
    seeds: int = Field(ge=1)
    label: str
    set: Differences = Field(default_factory=dict)
    tune: list[Differences] = Field(default_factory=list)
    like: str | None = None
    smoke: bool = False
    meter_of: str | None = None


class Tuning(Section):
    panel: str = "select"
    seeds: list[int] = Field(default_factory=lambda: [101])


class Final(Section):
    panel: str = "test"


class Quick(Section):
    """What --quick makes smaller."""

    seeds: int = 2
    tune: int = 1
    set: Differences = Field(default_factory=dict)
    without: list[str] = Field(default_factory=list)  # arms that so small a model cannot run


class Rules(Section):
    """The content of a protocol file."""

    question: str
    statistic: str
    worlds: dict[str, World]
    arms: dict[str, Arm]
    tuning: Tuning = Field(default_factory=Tuning)
    final: Final = Field(default_factory=Final)
    quick: Quick = Field(default_factory=Quick)


@dataclass(frozen=True)
class Protocol:
    """Rules with their name and hash; `is_quick` where they were made small."""

    name: str
    rules: Rules
    hash: str
    is_quick: bool = False
    more: Differences = field(default_factory=dict)  # settings on top of every world's

    def world(self, arm: str) -> World:
        return self.rules.worlds[self.rules.arms[arm].world]

    def meter_world(self, arm: str) -> World | None:
        """Where the arm's meter is fitted, None where in its own world."""
        name = self.rules.arms[arm].meter_of
        if name is None:
            return None
        world = self.rules.worlds[name]
        return world.model_copy(update={"set": merged(world.set, self.more)})

    def differences(self, arm: str, choice: Differences) -> Differences:
        """All that the arm's settings say beside its preset."""
        one = self.rules.arms[arm]
        base = self.rules.arms[one.like].set if one.like is not None else {}
        return merged(self.world(arm).set, base, one.set, choice, self.more)


def read_protocol(path: Path, *, quick: bool = False) -> Protocol:
    """Raises RatchetError where the file says something that is no protocol, or tunes one arm more than another."""
    try:
        rules = Rules.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise RatchetError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; see benchmarks/evidence/protocol.py") from None
    _check(path, rules)
    digest = sha256_json(rules.model_dump(mode="json"))
    if not quick:
        return Protocol(path.stem, rules, digest)
    small = rules.quick
    arms = {
        name: arm.model_copy(update={"seeds": min(arm.seeds, small.seeds), "tune": arm.tune[: small.tune]})
        for name, arm in rules.arms.items()
        if name not in small.without
    }
    return Protocol(path.stem, rules.model_copy(update={"arms": arms}), digest, True, small.set)


def _check(path: Path, rules: Rules) -> None:
    budgets = {}
    for name, arm in rules.arms.items():
        for key, world in (("world", arm.world), ("meter_of", arm.meter_of)):
            if world is not None and world not in rules.worlds:
                raise RatchetError(f"{path}: arms.{name}.{key}: there is no world {world!r}; they are {', '.join(rules.worlds)}")
        if arm.like is not None and (arm.like not in rules.arms or rules.arms[arm.like].like is not None or arm.tune):
            raise RatchetError(f"{path}: arms.{name}.like: has to name an arm that makes its own choice, and leaves none to make here")
        if arm.tune:
            budgets.setdefault(arm.world, {})[name] = len(arm.tune)
    for world, counts in budgets.items():
        if len(set(counts.values())) > 1:
            raise RatchetError(f"{path}: arms of {world} are tuned with unequal budgets ({counts}); give each the same number of settings")


def merged(*parts: Differences) -> Differences:
    """Later ones over earlier ones, mappings key by key."""
    out: Differences = {}
    for part in parts:
        _lay(out, part)
    return out


def _lay(below: Differences, above: Differences) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict) and key != "actors":
            _lay(below[key], value)
        else:
            below[key] = copy.deepcopy(value)
