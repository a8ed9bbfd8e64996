"""The compiled engine: plays a `World` with the text of the TextWorld engine, byte for byte, without PDDL or grammar.

It keeps the few facts that the text depends on and writes the text directly. What the text is was found by comparison with
the real engine and is held to it by tests; games that hold anything not compared go to the real engine (`NotCompilable`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence

from ratchet.envs.alfworld.world import World

NOTHING = "Nothing happens."
KNIVES = frozenset(("knifetype", "butterknifetype"))

# The uneven widths are the grammar's.
HELP = "\n".join(
    (
        "Available commands:",
        "  look:                             look around your current location",
        "  inventory:                        check your current inventory",
        "  go to (receptacle):               move to a receptacle",
        "  open (receptacle):                open a receptacle",
        "  close (receptacle):               close a receptacle",
        "  take (object) from (receptacle):  take an object from a receptacle",
        "  move (object) to (receptacle):  place an object in or on a receptacle",
        "  examine (something):              examine a receptacle or an object",
        "  use (object):                     use an object",
        "  heat (object) with (receptacle):  heat an object using a receptacle",
        "  clean (object) with (receptacle): clean an object using a receptacle",
        "  cool (object) with (receptacle):  cool an object using a receptacle",
        "  slice (object) with (object):     slice an object using a sharp object",
        "",
    )
)


def listing(names: Sequence[str]) -> str:
    """`nothing`, `X`, `A, and B`, `A, B, and C`."""
    if not names:
        return "nothing"
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + ", and " + names[-1]


class CompiledGame:
    """One episode of one world. `reset` gives the intro; `step` plays a command.

    `won` says whether the goal holds now; like the TextWorld engine itself, play goes on after winning and may undo it.
    `admissible` is the sorted tuple of the commands that do something now. A command is checked in constant time.
    """

    __slots__ = (
        "_admissible", "_articles", "_at", "_goto", "_handlers", "_held", "_here", "_inside", "_neighbours", "_objects", "_opened",
        "_place", "_receptacles", "_state", "_taken", "_won", "world",
    )  # fmt: skip

    def __init__(self, world: World) -> None:
        self.world = world
        self._receptacles = {name: r for r, name in enumerate(world.receptacle_names)}
        self._objects = {name: o for o, name in enumerate(world.object_names)}
        self._articles = tuple("a " + name for name in world.object_names)
        self._neighbours: list[tuple[int, ...]] = [
            tuple(r for r, place in enumerate(world.place_of) if place == here) for here in range(world.places)
        ]
        self._goto: dict[int, list[str]] = {}
        self._handlers: dict[str, Callable[[str], str | None]] = {
            "go": self._go, "open": self._open, "close": self._close, "take": self._take, "move": self._move,
            "examine": self._examine, "use": self._use, "heat": self._heat, "cool": self._cool, "clean": self._clean,
            "slice": self._slice, "look": self._look, "inventory": self._inventory, "help": self._help,
        }  # fmt: skip
        self.reset()

    def reset(self) -> str:
        """Starts over; the intro text with the task."""
        world = self.world
        self._place = world.start
        self._here = self._neighbours[world.start]
        self._held = -1
        self._opened = list(world.opened)
        self._inside = [list(objects) for objects in world.inside]
        self._at = [set(places) for places in world.at]
        self._taken: set[tuple[int, int]] = set()
        self._state = {name: set(objects) for name, objects in world.states.items()}
        self._admissible: tuple[str, ...] | None = None
        self._won: bool | None = None
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{self._first_look()}\n\nYour task is to: {world.sentence}."

    def step(self, command: str) -> tuple[str, bool]:
        """(text, whether the command was admissible)."""
        command = command.strip()
        verb, space, rest = command.partition(" ")
        handler = self._handlers.get(verb)
        if handler is None or (not space) != (verb in ("look", "inventory", "help")):
            return NOTHING, False
        text = handler(rest)
        return (NOTHING, False) if text is None else (text, True)

    @property
    def won(self) -> bool:
        """Whether the goal holds in the present state."""
        if self._won is None:
            self._won = self._goal_holds()
        return self._won

    @property
    def admissible(self) -> tuple[str, ...]:
        """The commands that do something now, sorted as strings."""
        if self._admissible is None:
            self._admissible = self._list_commands()
        return self._admissible

    # ---- what can be done ----------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._admissible = self._won = None

    def _accessible(self, r: int) -> bool:
        return self._opened[r] or not self.world.openable[r]

    def _local_pair(self, rest: str, word: str) -> tuple[int, int] | None:
        """(object, receptacle here) named in `O word R`."""
        o_name, _, r_name = rest.partition(word)
        o, r = self._objects.get(o_name), self._receptacles.get(r_name)
        return None if o is None or r is None or r not in self._here else (o, r)

    def _list_commands(self) -> tuple[str, ...]:
        """`go to` lies between `examine` and `heat` in the order of strings, so only what is before and after is sorted."""
        world, held = self.world, self._held
        before: list[str] = []
        after = ["help", "inventory", "look"]
        name = world.object_names[held] if held >= 0 else ""
        if held >= 0:
            before.append(f"examine {name}")
        for r in self._here:
            self._list_at(r, name, before, after)
        if held >= 0 and world.object_types[held] in KNIVES:
            for o in world.abilities["sliceable"]:
                if self._place in self._at[o]:
                    after.append(f"slice {world.object_names[o]} with {name}")
        before.sort()
        after.sort()
        goto = self._goto.get(self._place)
        if goto is None:
            goto = self._goto[self._place] = self._list_goto()
        return (*before, *goto, *after)

    def _list_goto(self) -> list[str]:
        pairs = zip(self.world.receptacle_names, self.world.place_of, strict=True)
        return sorted(f"go to {name}" for name, place in pairs if place >= 0 and place != self._place)

    def _list_at(self, r: int, name: str, before: list[str], after: list[str]) -> None:
        """Adds what can be done at receptacle r, holding the object `name` (empty: nothing)."""
        world, held, here = self.world, self._held, self.world.receptacle_names[r]
        before.append(f"examine {here}")
        accessible = self._accessible(r)
        if world.openable[r]:
            if accessible:
                before.append(f"close {here}")
            else:
                after.append(f"open {here}")
        for o in self._inside[r]:
            if held < 0 and accessible and o in world.abilities["pickupable"]:
                after.append(f"take {world.object_names[o]} from {here}")
            if o in world.abilities["toggleable"]:
                use = f"use {world.object_names[o]}"
                if use not in after:
                    after.append(use)
        if held < 0:
            return
        if accessible and held in world.fits[r]:
            after.append(f"move {name} to {here}")
        kind = world.receptacle_types[r]
        if kind == "sinkbasintype" and held in world.abilities["cleanable"]:
            before.append(f"clean {name} with {here}")
        elif kind == "microwavetype" and held in world.abilities["heatable"]:
            after.append(f"heat {name} with {here}")
        elif kind == "fridgetype" and held in world.abilities["coolable"]:
            before.append(f"cool {name} with {here}")

    def _goal_holds(self) -> bool:
        world, kind = self.world, self.world.task_type
        if kind == "look_at_obj_in_light":
            return self._held >= 0 and world.object_types[self._held] == world.target and self._lamp_is_on_here()
        needed = _NEEDED.get(kind)
        for r, r_type in enumerate(world.receptacle_types):
            if r_type != world.parent:
                continue
            placed = [o for o in self._inside[r] if world.object_types[o] == world.target]
            if needed is not None:
                placed = [o for o in placed if o in world.abilities[needed[0]] and o in self._state[needed[1]]]
            if len(placed) >= (2 if kind == "pick_two_obj_and_place" else 1):
                return True
        return False

    def _lamp_is_on_here(self) -> bool:
        world, toggled = self.world, self._state["istoggled"]
        lamps = (o for r in self._here for o in self._inside[r] if world.object_types[o] == world.parent)
        return any(o in toggled and o in world.abilities["toggleable"] for o in lamps)

    # ---- commands: each gives its text, or None where it is not admissible ------------------------------------------------

    def _go(self, rest: str) -> str | None:
        name = rest[3:]
        r = self._receptacles.get(name)
        if r is None or not rest.startswith("to "):
            return None
        place = self.world.place_of[r]
        if place < 0 or place == self._place:
            return None
        self._place, self._here = place, self._neighbours[place]
        self._changed()
        return f"You arrive at {name}. {self._contents(r)}"

    def _open(self, rest: str) -> str | None:
        r = self._receptacles.get(rest)
        if r is None or r not in self._here or self._accessible(r):
            return None
        self._opened[r] = True
        self._changed()
        return f"You open the {rest}. {self._contents(r)}"

    def _close(self, rest: str) -> str | None:
        r = self._receptacles.get(rest)
        if r is None or r not in self._here or not self.world.openable[r] or not self._opened[r]:
            return None
        self._opened[r] = False
        self._changed()
        return f"You close the {rest}."

    def _take(self, rest: str) -> str | None:
        pair = self._local_pair(rest, " from ")
        if pair is None or self._held >= 0:
            return None
        o, r = pair
        if o not in self._inside[r] or o not in self.world.abilities["pickupable"] or not self._accessible(r):
            return None
        self._inside[r].remove(o)
        self._taken.add(pair)
        self._at[o].discard(self._place)
        self._held = o
        self._changed()
        return f"You pick up the {self.world.object_names[o]} from the {self.world.receptacle_names[r]}."

    def _move(self, rest: str) -> str | None:
        pair = self._local_pair(rest, " to ")
        if pair is None or pair[0] != self._held:
            return None
        o, r = pair
        if o not in self.world.fits[r] or not self._accessible(r):
            return None
        if o not in self._inside[r]:  # a file may hold an object in two receptacles
            insort(self._inside[r], o)
        self._taken.discard(pair)
        self._at[o].add(self._place)
        self._held = -1
        self._changed()
        return f"You move the {self.world.object_names[o]} to the {self.world.receptacle_names[r]}."

    def _treat(self, rest: str, ability: str, appliance: str) -> int | None:
        """The held object where the appliance named in `O with R` is here and can treat it."""
        pair = self._local_pair(rest, " with ")
        if pair is None or pair[0] != self._held or pair[0] not in self.world.abilities[ability]:
            return None
        return pair[0] if self.world.receptacle_types[pair[1]] == appliance else None

    def _heat(self, rest: str) -> str | None:
        o = self._treat(rest, "heatable", "microwavetype")
        return None if o is None else self._treated(rest, "heat", o, "ishot", "iscool")

    def _cool(self, rest: str) -> str | None:
        o = self._treat(rest, "coolable", "fridgetype")
        return None if o is None else self._treated(rest, "cool", o, "iscool", "ishot")

    def _clean(self, rest: str) -> str | None:
        o = self._treat(rest, "cleanable", "sinkbasintype")
        return None if o is None else self._treated(rest, "clean", o, "isclean", "")

    def _treated(self, rest: str, verb: str, o: int, gained: str, lost: str) -> str:
        self._state[gained].add(o)
        if lost:
            self._state[lost].discard(o)
        self._won = None
        return f"You {verb} the {rest.replace(' with ', ' using the ')}."

    def _use(self, rest: str) -> str | None:
        o = self._objects.get(rest)
        if o is None or o not in self.world.abilities["toggleable"] or not any(o in self._inside[r] for r in self._here):
            return None
        self._state["istoggled"].add(o)
        self._won = None
        return f"You turn on the {rest}."

    def _slice(self, rest: str) -> str | None:
        o_name, _, knife_name = rest.partition(" with ")
        o, knife = self._objects.get(o_name), self._objects.get(knife_name)
        if o is None or knife is None or knife != self._held or self.world.object_types[knife] not in KNIVES:
            return None
        if o not in self.world.abilities["sliceable"] or self._place not in self._at[o]:
            return None
        self._state["issliced"].add(o)
        return f"You sliced the {o_name} with the {knife_name}."

    # ---- texts ---------------------------------------------------------------------------------------------------------

    def _contents(self, r: int) -> str:
        name = self.world.receptacle_names[r]
        if not self.world.openable[r]:
            return f"On the {name}, you see {listing([self._articles[o] for o in self._inside[r]])}."
        if self._opened[r]:
            return f"The {name} is open. In it, you see {listing([self._articles[o] for o in self._inside[r]])}."
        return f"The {name} is closed."

    def _examine(self, rest: str) -> str | None:
        r = self._receptacles.get(rest)
        if r is not None:
            return self._contents(r) if r in self._here else None
        o = self._objects.get(rest)
        return None if o is None or o != self._held else self._description(o)

    def _description(self, o: int) -> str:
        name, state, abilities = self.world.object_names[o], self._state, self.world.abilities
        if o in abilities["isreceptacleobject"]:
            return f"This is a normal {name}. In it, you see {listing([self._articles[i] for i in self.world.holds_inside.get(o, ())])}."
        clean, hot, cool, sliced = (o in state[key] for key in ("isclean", "ishot", "iscool", "issliced"))
        words = (["hot"] if hot else ["cool"] if cool else []) + (["clean"] if clean else [])
        adjective = " and ".join(words)
        if words and sliced:
            return f"This is a {adjective} sliced {name}."
        if words:
            return f"This is a {'cold' if adjective == 'cool' else adjective} {name}."
        if o in abilities["toggleable"] and o in state["istoggled"]:
            return f"This {name} is on."
        if sliced and o in abilities["sliceable"]:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    def _first_look(self) -> str:
        if self._here:
            return self._look("")
        names = [f"a {name}" for name, place in zip(self.world.receptacle_names, self.world.place_of, strict=True) if place >= 0]
        return f"You are in the middle of a room. Looking quickly around you, you see {listing(names)}."

    def _look(self, rest: str) -> str:
        if not self._here:
            return f"You are in the middle of a room. Looking quickly around you, you see {listing(())}."
        facing = listing([self.world.receptacle_names[r] for r in self._here])
        return f"You are facing the {facing}. Next to it, you see {listing(self._beside())}."

    def _beside(self) -> list[str]:
        """An object at this place shows once for each receptacle here that it was taken out of and is not back in."""
        pairs = sorted(pair for pair in self._taken if pair[1] in self._here and self._place in self._at[pair[0]])
        return [self._articles[o] for o, _ in pairs]

    def _inventory(self, rest: str) -> str:
        return f"You are carrying: {self._articles[self._held]}." if self._held >= 0 else "You are not carrying anything."

    def _help(self, rest: str) -> str:
        return HELP


# Task type -> the ability and the state that its object must have.
_NEEDED = {
    "pick_clean_then_place_in_recep": ("cleanable", "isclean"),
    "pick_heat_then_place_in_recep": ("heatable", "ishot"),
    "pick_cool_then_place_in_recep": ("coolable", "iscool"),
}
