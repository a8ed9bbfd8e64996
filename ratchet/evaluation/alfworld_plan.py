"""The shortest remaining plan of an ALFWorld game in the compiled engine, by one who knows where everything is.

Nothing in ALFWorld is ever lost, so a step brings the goal nearer, leaves it where it is, or moves it away.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from ratchet.envs.alfworld.compiled import _NEEDED, CompiledGame

APPLIANCE = {"isclean": "sinkbasintype", "ishot": "microwavetype", "iscool": "fridgetype"}


def plan_length(game: CompiledGame) -> int | None:
    """Fewest commands from the present state until the goal holds, 0 where it does; None where nothing in the room can meet it."""
    if game.won:
        return 0
    return min(_plans(_State(game)), default=None)


class _State:
    """What of a game a plan depends on."""

    def __init__(self, game: Any) -> None:
        self.world, self.place, self.held = game.world, game._place, game._held
        self.opened, self.inside, self.state = game._opened, game._inside, game._state
        world = self.world
        self.targets = [o for o, kind in enumerate(world.object_types) if kind == world.target]
        self.parents = [r for r, kind in enumerate(world.receptacle_types) if kind == world.parent and world.place_of[r] >= 0]
        self.where = {o: r for r, objects in enumerate(self.inside) for o in objects}

    def steps(self, *stops: tuple[int, bool, int]) -> int:
        """Commands for stops at receptacles in this order: (receptacle, whether it has to be open, what is done there)."""
        place, opened, total = self.place, set[int](), 0
        for r, open_it, done in stops:
            total += self.world.place_of[r] != place
            place = self.world.place_of[r]
            if open_it and self.world.openable[r] and not self.opened[r] and r not in opened:
                opened.add(r)
                total += 1
            total += done
        return total

    def dropped(self, kept: int) -> Iterator[tuple[tuple[int, bool, int], ...]]:
        """The ways to have empty hands or hold `kept`: nothing to do, or one stop."""
        if self.held < 0 or self.held == kept:
            yield ()
            return
        for r, fits in enumerate(self.world.fits):
            if self.held in fits and self.world.place_of[r] >= 0:
                yield ((r, True, 1),)

    def got(self, o: int) -> Iterator[tuple[tuple[int, bool, int], ...]]:
        """The ways to hold `o`."""
        for before in self.dropped(o):
            if self.held == o:
                yield before
            elif o in self.where and o in self.world.abilities["pickupable"] and self.world.place_of[self.where[o]] >= 0:
                yield (*before, (self.where[o], True, 1))

    def of_type(self, kind: str) -> list[int]:
        return [r for r, own in enumerate(self.world.receptacle_types) if own == kind and self.world.place_of[r] >= 0]


def _plans(one: _State) -> Iterator[int]:
    kind = one.world.task_type
    if kind == "look_at_obj_in_light":
        yield from _in_light(one)
    elif kind == "pick_two_obj_and_place":
        yield from _two(one)
    else:
        yield from _placed(one, *_NEEDED.get(kind, ("", "")))


def _placed(one: _State, ability: str, needed: str) -> Iterator[int]:
    for o in one.targets:
        if ability and o not in one.world.abilities[ability]:
            continue
        treat = [()] if not needed or o in one.state[needed] else [((r, False, 1),) for r in one.of_type(APPLIANCE[needed])]
        for got in one.got(o):
            for treated in treat:
                yield from (one.steps(*got, *treated, (r, True, 1)) for r in one.parents if o in one.world.fits[r])


def _two(one: _State) -> Iterator[int]:
    for r in one.parents:
        there = [o for o in one.targets if one.where.get(o) == r]
        missing = 2 - len(there)
        others = [o for o in one.targets if o not in there and o in one.world.fits[r] and (o == one.held or o in one.where)]
        for order in permutations(others, missing):
            if one.held in order and order[0] != one.held:
                continue
            for before in one.dropped(order[0]):
                stops = list(before)
                for o in order:
                    stops += [] if o == one.held else [(one.where[o], True, 1)]
                    stops.append((r, True, 1))
                yield one.steps(*stops)


def _in_light(one: _State) -> Iterator[int]:
    lamps = [o for o, kind in enumerate(one.world.object_types) if kind == one.world.parent and o in one.world.abilities["toggleable"] and o in one.where]
    for o in one.targets:
        for got in one.got(o):
            for lamp in lamps:
                if one.world.place_of[one.where[lamp]] >= 0:
                    yield one.steps(*got, (one.where[lamp], False, lamp not in one.state["istoggled"]))
