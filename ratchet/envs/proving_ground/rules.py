"""The rules of the proving ground: what an action does to the state, and what is read then. Pure functions over small tuples.

An order says which item is to be sent from which room. A fragile item has to be wrapped before, a sold one must not be sent at all.
What was sent is gone: the wrong item, from the wrong room or unwrapped, and the task is lost, though nothing says so. Everything
else can be undone. `finish` ends the episode, solved where exactly what had to be sent was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

NOTHING = "nothing happens ."
DO_NOTHING = "finish"
"""The action that ends an episode: a policy that only ever says it does nothing."""
IDLE = "idle"
"""The stratum in which doing nothing succeeds."""

ROOMS = ("attic", "barn", "cellar", "den", "hall", "loft", "porch", "shed", "study", "yard")
THINGS = (
    "basket", "bell", "book", "boot", "bottle", "box", "broom", "bucket", "candle", "chair", "clock", "coat",
    "cup", "drum", "hat", "jar", "kettle", "lamp", "map", "pipe", "plate", "rope", "stove", "vase",
)  # fmt: skip
NOISE = ("ash", "bee", "clay", "dusk", "fern", "gale", "iris", "kelp", "mist", "moth", "oak", "pine", "reed", "snow", "vine", "wren")
FILLER = ("hm", "let", "me", "see", "so", "then", "well", "now", "maybe", "right", "first", "next")
PLAIN, FRAGILE, SOLD = "plain", "fragile", "sold"
SAID = ("orders", "things", "from", "in", "you", "are", "here", "hold", "is", "wrapped", "sent", "back", "nothing", "happens", "over", "day")
VERBS = ("go", "take", "wrap", "return", "send", "wait", DO_NOTHING)
WORDS = (*ROOMS, *THINGS, *NOISE, *FILLER, PLAIN, FRAGILE, SOLD, *SAID, *VERBS)
"""Every word that is ever said here: one token each for the models from scratch."""


class Item(NamedTuple):
    """`home` is the room in which it lies at first and to which it can be returned."""

    name: str
    home: int
    state: str


class Order(NamedTuple):
    item: int
    room: int


class State(NamedTuple):
    """`held`: an item or −1; `wrapped`, `sent`: bit masks over items; `spoiled`: sent wrongly, for good; `over`: finished."""

    room: int
    held: int = -1
    wrapped: int = 0
    sent: int = 0
    spoiled: bool = False
    over: bool = False


@dataclass(frozen=True)
class World:
    """One task: a house, what lies in it, and what is ordered. `noise` distractor words stand in every observation."""

    task_id: str
    rooms: tuple[str, ...]
    items: tuple[Item, ...]
    orders: tuple[Order, ...]
    facts: tuple[int, ...]  # items in the order in which they are told
    start: int
    noise: int  # at most 64

    @property
    def begin(self) -> State:
        return State(self.start)

    @cached_property
    def wanted(self) -> int:
        """Bit mask of the items that have to be sent: those ordered and not sold."""
        return sum(1 << order.item for order in self.orders if self.items[order.item].state != SOLD)

    @cached_property
    def destination(self) -> dict[int, int]:
        """Item → the room that it has to be sent from; sold ones have none."""
        return {order.item: order.room for order in self.orders if self.items[order.item].state != SOLD}

    @cached_property
    def moves(self) -> dict[str, tuple[str, int]]:
        """What may be said at all: text → (verb, room or item)."""
        moves = {f"go {room}": ("go", at) for at, room in enumerate(self.rooms)}
        for verb in ("take", "wrap", "return", "send"):
            moves |= {f"{verb} {item.name}": (verb, at) for at, item in enumerate(self.items)}
        return moves | {"wait": ("wait", -1), DO_NOTHING: (DO_NOTHING, -1)}

    def solved(self, state: State) -> bool:
        return state.over and not state.spoiled and state.sent == self.wanted

    def admissible(self, state: State) -> tuple[str, ...]:
        """Sorted by kind; never empty before the end."""
        if state.over:
            return ()
        actions = [f"go {room}" for at, room in enumerate(self.rooms) if at != state.room]
        if state.held >= 0:
            held = self.items[state.held]
            actions += [f"send {held.name}", f"wrap {held.name}"]
            if held.home == state.room:
                actions.append(f"return {held.name}")
        else:
            actions += [f"take {item.name}" for at, item in enumerate(self.items) if self._lies_here(state, at)]
        return (*actions, "wait", DO_NOTHING)

    def act(self, state: State, action: str) -> tuple[State, str, bool]:
        """(what is then, what is said, whether the action was admissible). What is not admissible does nothing."""
        verb, at = self.moves.get(action.strip(), ("", -1))
        if state.over or not verb:
            return state, NOTHING, False
        if verb == "go":
            return (state._replace(room=at), self._arrived(state, at), True) if at != state.room else (state, NOTHING, False)
        if verb == "wait":
            return state, NOTHING, True
        if verb == DO_NOTHING:
            return state._replace(over=True), "the day is over .", True
        if verb == "take":
            if state.held >= 0 or not self._lies_here(state, at):
                return state, NOTHING, False
            return state._replace(held=at), f"you hold {self.items[at].name} .", True
        return self._handle(state, verb, at) if at == state.held else (state, NOTHING, False)

    def _handle(self, state: State, verb: str, at: int) -> tuple[State, str, bool]:
        """What can be done with what is held."""
        item = self.items[at]
        if verb == "wrap":
            if item.state != FRAGILE or state.wrapped >> at & 1:
                return state, NOTHING, True  # a detour
            return state._replace(wrapped=state.wrapped | 1 << at), f"{item.name} is wrapped .", True
        if verb == "return":
            return (state._replace(held=-1), f"{item.name} is back .", True) if item.home == state.room else (state, NOTHING, False)
        right = self.destination.get(at) == state.room and (item.state != FRAGILE or bool(state.wrapped >> at & 1))
        after = state._replace(held=-1, sent=state.sent | 1 << at, spoiled=state.spoiled or not right)
        return after, f"{item.name} is sent .", True

    def _lies_here(self, state: State, at: int) -> bool:
        return self.items[at].home == state.room and at != state.held and not state.sent >> at & 1

    def _arrived(self, state: State, room: int) -> str:
        there = state._replace(room=room)
        names = [item.name for at, item in enumerate(self.items) if self._lies_here(there, at)]
        return f"you are in {self.rooms[room]} ." + (f" here {' , '.join(names)} ." if names else "")

    def first(self) -> str:
        """The first observation: orders, each behind what there is to know of its item, then the other things, noise, where you are.

        What belongs together stands together: looking up an item of a list by its name takes a small model far longer than a minute.
        """
        facts = {at: f"{item.name} {self.rooms[item.home]} {item.state} ." for at, item in enumerate(self.items)}
        orders = " ".join(f"{facts.pop(order.item)} from {self.rooms[order.room]} send {self.items[order.item].name} ." for order in self.orders)
        others = " ".join(facts[at] for at in self.facts if at in facts)
        noise = self.disturbed("", 0).strip()
        return f"orders : {orders} things : {others} {noise + ' ' if noise else ''}{self._arrived(State(-1), self.start)}"

    def disturbed(self, text: str, t: int) -> str:
        """`text` with the noise of turn t behind it, the same whenever this task is played."""
        if not self.noise:
            return text
        drawn = blake2b(f"{self.task_id}/{t}".encode()).digest()[: self.noise]
        return f"{text} {' '.join(NOISE[byte % len(NOISE)] for byte in drawn)} ."
