"""A scripted expert that explores: it sees only the text and the admissible commands, and thinks shortly before it acts.

It looks into plausible places first (what the constants say can hold the object; open before closed; then the order of the
intro), remembers what it saw, and reads its whole situation from each turn, so it can also go on from anybody's actions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ratchet.envs.alfworld.layouts import LAMP_PLACES, goal_templates, rules
from ratchet.envs.base import Task, Turn
from ratchet.errors import RatchetError

APPLIANCE_OF = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
STATE_AFTER = {"clean": "clean", "heat": "hot", "cool": "cool"}

_VERB_OF_TASK = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}
_ENTITY = re.compile(r"a ([a-z]+ \d+)")
_SEEN = re.compile(r"(?:On the ([a-z]+ \d+), you see|The ([a-z]+ \d+) is open\. In it, you see) ([^.]*)\.")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
_TAKEN = re.compile(r"You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_MOVED = re.compile(r"You move the ([a-z]+ \d+) to the ([a-z]+ \d+)\.")
_TREATED = re.compile(r"You (heat|cool|clean) the ([a-z]+ \d+) using")
_TASK = re.compile(r"Your task is to: (.*)\.\s*$")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a task sentence asks for; all names are types as the text writes them (`mug`, `sinkbasin`)."""

    task_type: str
    target: str
    parent: str  # receptacle type, or the lamp type
    verb: str  # clean, heat, cool or empty
    count: int

    @property
    def adjective(self) -> str:
        """The state the object must be in, with a space after it, or nothing."""
        return STATE_AFTER[self.verb] + " " if self.verb else ""


@lru_cache(maxsize=1)
def _sentence_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    groups = {"obj": "(?P<target>[a-z]+)", "recep": "(?P<parent>[a-z]+)", "toggle": "(?P<parent>[a-z]+)"}
    return tuple(
        (kind, re.compile(template.format(**groups))) for kind, (_, templates) in goal_templates().items() for template in templates
    )


def parse_goal(intro: str) -> Goal:
    """The goal in an intro's task sentence. Raises RatchetError where the sentence is of none of the known forms."""
    found = _TASK.search(intro)
    sentence = found[1] if found else ""
    for kind, pattern in _sentence_patterns():
        match = pattern.fullmatch(sentence)
        if match:
            count = 2 if kind == "pick_two_obj_and_place" else 1
            return Goal(kind, match["target"], match["parent"], _VERB_OF_TASK.get(kind, ""), count)
    raise RatchetError(f"the ALFWorld expert does not understand the task {sentence!r}; it knows the goal library's sentences only")


@lru_cache(maxsize=1)
def plausible_places() -> dict[str, frozenset[str]]:
    """Object type -> receptacle types it may be in (both as in the text), from the wheel's constants and the lamps' places."""
    places: dict[str, set[str]] = {}
    for receptacle, objects in rules().contains.items():
        for kind in objects:
            places.setdefault(kind.lower(), set()).add(receptacle.lower())
    for lamp, stands in LAMP_PLACES.items():
        places[lamp.lower()] = {name.lower() for name in stands}
    return {kind: frozenset(names) for kind, names in places.items()}


@lru_cache(maxsize=1)
def _openable() -> frozenset[str]:
    return frozenset(name.lower() for name in rules().openable)


def kind_of(name: str) -> str:
    """`mug 2` -> `mug`."""
    return name.rpartition(" ")[0]


class AlfworldExpert:
    """The exploring expert. The same episode always gives the same thoughts and actions."""

    def reset(self, task: Task, turn: Turn) -> None:
        """Reads the room and the task from the intro. Raises RatchetError for a task sentence it does not know."""
        self.goal = parse_goal(turn.observation)
        intro = turn.observation.rpartition("Your task is to:")[0]
        self.receptacles: list[str] = _ENTITY.findall(intro)
        self._index = {name: i for i, name in enumerate(self.receptacles)}
        self._contents: dict[str, list[str]] = {}
        self._closed: set[str] = set()
        self._treated: set[str] = set()
        self._here: list[str] = []
        self._last: str = ""  # the receptacle last looked at
        self._held: str = ""
        self._destination: str = ""

    def act(self, turn: Turn) -> tuple[str, str]:
        """(`thought`, `action`) for the latest turn; the action is always among `turn.admissible`."""
        self._observe(turn)
        self._commands = turn.admissible
        if self._held and kind_of(self._held) != self.goal.target:
            return self._put_away()
        if self.goal.task_type == "look_at_obj_in_light" and self._held:
            return self._use_lamp()
        if self._held and self.goal.verb and self._held not in self._treated:
            return self._treat()
        if self._held:
            return self._place()
        return self._fetch()

    # ---- what the text says --------------------------------------------------------------------------------------------

    def _observe(self, turn: Turn) -> None:
        text = turn.observation
        for on, inside, names in _SEEN.findall(text):
            self._last = on or inside
            self._contents[self._last] = _ENTITY.findall(names)
            self._closed.discard(self._last)
        for name in _CLOSED.findall(text):
            self._last = name
            self._closed.add(name)
        for name, place in _TAKEN.findall(text):
            self._contents[place] = [other for other in self._contents.get(place, []) if other != name]
        for name, place in _MOVED.findall(text):
            self._contents.setdefault(place, []).append(name)
            if kind_of(name) == self.goal.target and kind_of(place) == self.goal.parent:
                self._destination = place
        for verb, name in _TREATED.findall(text):
            if verb == self.goal.verb:
                self._treated.add(name)
            elif {verb, self.goal.verb} == {"heat", "cool"}:
                self._treated.discard(name)
        self._read_place(turn.admissible)

    def _read_place(self, commands: Sequence[str]) -> None:
        """Where it stands and what it holds: `examine` is admissible for exactly these."""
        examined = [command.removeprefix("examine ") for command in commands if command.startswith("examine ")]
        self._here = [name for name in examined if name in self._index]
        self._held = next((name for name in examined if name not in self._index), "")
        for name in self._here:
            if f"open {name}" in commands:
                self._closed.add(name)
            elif f"close {name}" in commands:
                self._closed.discard(name)

    # ---- what to do ----------------------------------------------------------------------------------------------------

    def _approach(self, place: str, why: str, step: str = "go") -> tuple[str, str]:
        """Goes to `place`; where it shares the present spot, looks at it instead."""
        command = f"examine {place}" if place in self._here else f"go to {place}"
        return f"{why} ; {step} {place}", command

    def _fetch(self) -> tuple[str, str]:
        """Takes an object of the wanted type where one was seen, or looks for one."""
        goal = self.goal
        number = "two " if goal.count == 2 and not self._destination else "another " if goal.count == 2 else ""
        need = f"need {number}{goal.adjective}{goal.target}"
        for place in sorted(self._contents, key=lambda name: (name not in self._here, self._index[name])):
            found = [name for name in self._contents[place] if kind_of(name) == goal.target]
            if not found or place == self._destination:
                continue
            if place not in self._here:
                return self._approach(place, f"{need} ; {found[0]} in {place}")
            if place in self._closed:
                return f"{need} ; {place} closed ; open", f"open {place}"
            return f"{need} ; {found[0]} here ; take", f"take {found[0]} from {place}"
        return self._search(goal.target, need)

    def _search(self, kind: str, need: str) -> tuple[str, str]:
        """Looks into the most plausible place not yet seen; when all were seen, starts over."""
        for name in self._here:
            if name in self._closed and name not in self._contents and name == self._last:
                return f"{need} ; {name} closed ; open", f"open {name}"
        unseen = [name for name in self.receptacles if name not in self._contents]
        if not unseen:
            self._contents.clear()
            unseen = [name for name in self.receptacles if f"go to {name}" in self._commands]
        best = min(unseen, key=lambda name: self._order(kind, name))
        if best in self._here and best in self._closed:
            return f"{need} ; {best} closed ; open", f"open {best}"
        status = f"not in {self._last}" if self._last in self._here else "not seen yet"
        return self._approach(best, f"{need} ; {status}", "try")

    def _order(self, kind: str, name: str) -> tuple[bool, bool, bool, int]:
        """Plausible before implausible, the destination late (there the object would be in place), open before closed, then as listed."""
        place = kind_of(name)
        implausible = place not in plausible_places().get(kind, frozenset())
        return implausible, place == self.goal.parent, place in _openable(), self._index[name]

    def _treat(self) -> tuple[str, str]:
        """Takes the held object to the appliance and uses it."""
        appliance = self._first(APPLIANCE_OF[self.goal.verb])
        why = f"{self._held} not {STATE_AFTER[self.goal.verb]}"
        command = f"{self.goal.verb} {self._held} with {appliance}"
        if command in self._commands:
            return f"{why} ; at {appliance} ; {self.goal.verb}", command
        return self._approach(appliance, why)

    def _place(self) -> tuple[str, str]:
        """Takes the held object, ready by now, to its destination and puts it there."""
        place = self._destination or self._first(self.goal.parent)
        why = f"{self._held} {STATE_AFTER[self.goal.verb] if self.goal.verb else 'ready'}"
        command = f"move {self._held} to {place}"
        if command in self._commands:
            return f"{why} ; at {place} ; put", command
        if f"open {place}" in self._commands:
            return f"{why} ; {place} closed ; open", f"open {place}"
        return self._approach(place, why)

    def _use_lamp(self) -> tuple[str, str]:
        """With the object in hand, uses the lamp where it stands, or looks for it."""
        lamp = self.goal.parent
        need = f"{self._held} held ; need {lamp}"
        for place in sorted(self._contents, key=lambda name: (name not in self._here, self._index[name])):
            for name in self._contents[place]:
                if kind_of(name) == lamp:
                    if place in self._here:
                        return f"{self._held} held ; {name} here ; use", f"use {name}"
                    return self._approach(place, f"{self._held} held ; {name} in {place}")
        return self._search(lamp, need)

    def _put_away(self) -> tuple[str, str]:
        """Holding something else (only after somebody else's actions): puts it where it fits."""
        why = f"{self._held} not needed"
        for name in self._here:
            for command in (f"move {self._held} to {name}", f"open {name}"):
                if command in self._commands and kind_of(name) in plausible_places().get(kind_of(self._held), frozenset()):
                    return f"{why} ; put away", command
        elsewhere = [name for name in self.receptacles if f"go to {name}" in self._commands]
        return self._approach(min(elsewhere, key=lambda name: self._order(kind_of(self._held), name)), why)

    def _first(self, kind: str) -> str:
        """The first receptacle of a type in the intro's order."""
        return next((name for name in self.receptacles if kind_of(name) == kind), self.receptacles[0])
