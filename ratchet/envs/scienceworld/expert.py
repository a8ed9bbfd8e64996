"""An expert made from gold paths. The engine knows the way; what it says and when it acts follows from what an agent has seen.

The rule for find-* and lifespan-*, whose next step can be explained by the text so far:

- it chooses nothing in a place that it has not looked at: where the path does, it looks around first;
- a thing is called as the text calls it, where that is one thing only;
- what changes nothing is left out: opening doors that the house keeps open, looking twice;
- the thought names what is needed now, what was found or is held, and where it goes next.

All other tasks are played as the engine plays them, without thoughts: why it takes this wire or waits is not in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

from ratchet.envs.base import Task, Turn
from ratchet.errors import RatchetError
from ratchet.files import read_json

GOLD_FILE = "gold.json"
_FIND = re.compile(r"find a\(n\) (?P<kind>[a-z -]+)\..* move it to the (?P<box>[a-z]+ box) in the (?P<room>[a-z ]+)\.")
_LIFESPAN = re.compile(r"[Ff]ocus on the animal with the (longest|shortest) life span")
_PLACE = re.compile(r"'([a-z ]+)' location")
_NAME = re.compile(r"\b(?:a substance called|an?|the) ([a-z][a-z0-9]*(?: [a-z0-9]+)*?)(?= \(| in the |, |[.,)]|\s*$|\s*\n)")
_ANIMAL = re.compile(r"^\tan? (?:baby ([a-z ]+?)|([a-z ]+?) egg|([a-z ]+?) in the [a-z]+ stage.*)$", re.MULTILINE)
_OPEN_DOOR = re.compile(r"door to the [a-z ]+ \(that is open\)")


def names_in(text: str) -> list[str]:
    """What a description names, in its order: `a flower pot 4 (containing …` names `flower pot 4`."""
    return _NAME.findall(text)


def named_as(referent: str, seen: Iterable[str]) -> str:
    """The one name in `seen` that `referent` means (`egg giant tortoise` is the `giant tortoise egg`); `referent` where that is not
    clear, because no name or more than one fits."""
    words = set(referent.split())
    fitting = [name for name in seen if words <= set(name.split())]
    return fitting[0] if len(fitting) == 1 else referent


def animals_in(text: str) -> list[str]:
    """Kinds of animals in a description, by what only animals are called: `baby X`, `X egg`, `X in the … stage`."""
    return [next(filter(None, found)) for found in _ANIMAL.findall(text)]


class ScienceworldExpert:
    """Plays the gold paths that `prepare` verified. The same episode always gives the same thoughts and actions."""

    needs_admissible = False

    def __init__(self, paths: Mapping[str, Sequence[str]]) -> None:
        self.paths = paths
        self._left: list[str] = []

    def reset(self, task: Task, turn: Turn) -> None:
        """Raises RatchetError for a task without a path; there are some for the training tasks only."""
        if task.task_id not in self.paths:
            raise RatchetError(f"there is no gold path for {task.task_id!r}; the ScienceWorld expert plays the tasks of train and seen")
        self._left = list(self.paths[task.task_id])
        description, _, _ = turn.observation.partition("\n")
        self._find = _FIND.search(description)
        self._lifespans: list[str] = _LIFESPAN.findall(description)
        place = _PLACE.search(description)
        self._place = place[1] if place else ""
        self._open = bool(_OPEN_DOOR.search(turn.observation))
        self._here = ""  # the description of where it stands; nothing after a move, until it looks
        self._room = ""
        self._found = self._held = ""

    def act(self, turn: Turn) -> tuple[str, str]:
        """(`thought`, `action`) for the latest turn. At the end of the path, after somebody else's actions, it looks around."""
        if not (self._find or self._lifespans):
            return "", self._left.pop(0) if self._left else "look around"
        self._see(turn.observation)
        self._skip()
        action = self._left[0] if self._left else "look around"
        verb, _, thing = action.partition(" ")
        if action == "look around" or (verb == "focus" and not self._here):
            return f"{self._status()} ; at {self._room} ; look", "look around"
        walk = takewhile(lambda one: one.startswith(("go to ", "open door to ")), self._left)
        rooms = [one.removeprefix("go to ") for one in walk if one.startswith("go to ")]
        self._left.pop(0)
        if verb in ("go", "open"):
            return f"{self._way(rooms[-1] if rooms else thing)} ; {verb} {thing.rpartition('to ')[2]}", f"{verb} {thing}"
        if verb == "focus":
            return self._focus(thing.removeprefix("on "))
        if verb == "pick":
            referent = thing.removeprefix("up ")
            own = set(referent.split()) <= set(self._found.split())
            self._held = self._found if own else named_as(referent, names_in(self._here))
            return f"{self._found} found ; take {self._held}", f"pick up {self._held}"
        if verb == "move" and self._find:
            box = self._find["box"]
            return f"{self._status()} ; {box} here ; put", f"move {self._held or self._found} to {box}"
        return self._status(), f"{verb} {thing}"

    def _see(self, text: str) -> None:
        moved = re.match(r"You move to the ([a-z ]+)\.", text)
        if moved:
            self._here, self._room = "", moved[1]
        focused = re.match(r"You focus on the ([a-z0-9 ]+)\.", text)
        if focused:
            self._found = focused[1]
        described = re.search(r"(?:room|location) is called the ([a-z ]+)\.", text)
        if described:
            self._here, self._room = text[described.start() :], described[1]

    def _skip(self) -> None:
        """Leaves out what changes nothing: opening doors that the house keeps open, looking where it has just looked."""
        while self._left and (
            (self._open and self._left[0].startswith("open door to ")) or (self._left[0] == "look around" and bool(self._here))
        ):
            self._left.pop(0)

    def _focus(self, referent: str) -> tuple[str, str]:
        name = named_as(referent, names_in(self._here))
        if self._find:
            return f"need {self._find['kind']} ; {name} here ; focus", f"focus on {name}"
        animals = animals_in(self._here)
        kind = next((one for one in animals if set(one.split()) <= set(name.split())), name)
        return f"animals {', '.join(animals)} ; {self._wanted()} {kind} ; focus", f"focus on {name}"

    def _wanted(self) -> str:
        """`longest` or `shortest`: what it has to focus on next."""
        return self._lifespans[-1 if self._found else 0]

    def _status(self) -> str:
        """What is needed, or what was found and is held."""
        if self._lifespans:
            return f"need {self._wanted()} life span"
        if self._held:
            return f"{self._held} held"
        return f"{self._found} found" if self._found else f"need {self._find['kind']}" if self._find else ""

    def _way(self, destination: str) -> str:
        """The status, and what for it walks to `destination`."""
        if self._lifespans:
            return f"{self._status()} ; animals in {self._place}"
        if self._found and self._find:
            return f"{self._status()} ; need {self._find['box']} in {self._find['room']}"
        return f"{self._status()} ; try {destination}"


@cache
def read_paths(folder: Path) -> Mapping[str, list[str]]:
    """The verified gold paths of `prepare`, by task id."""
    return read_json(folder / GOLD_FILE)["paths"]
