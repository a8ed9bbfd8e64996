"""A game as numbers: what the compiled engine plays, the same whether it comes from a compact game or a PDDL file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ratchet.envs.alfworld.games import Game
from ratchet.envs.alfworld.layouts import LAMP_PLACES, Receptacle, rules, scene

ABILITIES = ("pickupable", "heatable", "coolable", "cleanable", "toggleable", "sliceable", "isreceptacleobject")
STATES = ("isclean", "ishot", "iscool", "istoggled", "issliced")
_MANGLED = (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_"))


@dataclass(frozen=True, slots=True)
class World:
    """The fixed part and the first state of a game.

    Receptacles, objects and places are numbered in the order of their mangled ids, which is the order of every listing.
    Types are lower-case (`mugtype`). `place_of[r]` is -1 for a receptacle that stands nowhere. `fits[r]` are the objects
    that receptacle r can hold, `inside[r]` those it holds at first (sorted), `at[o]` the places object o is first at.
    """

    receptacle_names: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    place_of: tuple[int, ...]
    openable: tuple[bool, ...]
    opened: tuple[bool, ...]
    fits: tuple[frozenset[int], ...]
    object_names: tuple[str, ...]
    object_types: tuple[str, ...]
    abilities: Mapping[str, frozenset[int]]
    states: Mapping[str, frozenset[int]]
    holds_inside: Mapping[int, tuple[int, ...]]
    inside: tuple[tuple[int, ...], ...]
    at: tuple[frozenset[int], ...]
    places: int
    start: int
    task_type: str
    target: str
    parent: str
    sentence: str


def mangle(name: str) -> str:
    """An id as PDDL can hold it: `Mug|+00.65|-01.20` becomes `Mug_bar__plus_00_dot_65_bar__minus_01_dot_20`."""
    for plain, mangled in _MANGLED:
        name = name.replace(plain, mangled)
    return name


def display_names(ids: list[str]) -> dict[str, str]:
    """Id -> name as the text shows it. `ids` must be sorted and hold every entity; numbers of a type count downwards."""
    bases = [_base_name(id_) for id_ in ids]
    left: dict[str, int] = {}
    for base in bases:
        left[base] = left.get(base, 0) + 1
    names = {}
    for id_, base in zip(ids, bases, strict=True):
        names[id_] = f"{base} {left[base]}"
        left[base] -= 1
    return names


def _base_name(id_: str) -> str:
    base = id_.split("_bar_", 1)[0]
    return base + "basin" if "basin" in id_ else base


@dataclass(frozen=True, slots=True)
class _Fixture:
    """What one receptacle of a scene always looks like in a world."""

    id: str
    type: str
    coordinates: str  # mangled, for the ids of the objects in it
    place: str
    openable: bool


@lru_cache(maxsize=256)
def _fixtures(number: int) -> tuple[_Fixture, ...]:
    return tuple(_fixture(r) for r in scene(number).receptacles)


def _fixture(r: Receptacle) -> _Fixture:
    coordinates = mangle("|".join(r.id.split("|")[1:4]))
    return _Fixture(mangle(r.id).lower(), f"{r.type.lower()}type", coordinates, place_id(r.place), r.type in rules().openable)


def place_id(place: tuple[int, int, int, int]) -> str:
    """The mangled PDDL id of a place."""
    return mangle("loc|{}|{}|{}|{}".format(*place)).lower()


def start_place(game: Game) -> tuple[int, int, int, int]:
    """A place where no receptacle is: the agent starts there."""
    x = max(r.place[0] for r in scene(game.scene).receptacles)
    return (x + 4, 0, 0, 0)


def object_ids(game: Game) -> list[str]:
    """The mangled, lower-case PDDL id of each of the game's objects, in their order; different by their last number."""
    fixtures = _fixtures(game.scene)
    return [f"{kind.lower()}_bar_{fixtures[r].coordinates}_bar_{slot:02d}" for slot, (kind, r) in enumerate(game.objects)]


@lru_cache(maxsize=1)
def _type_tables() -> tuple[dict[str, frozenset[str]], dict[str, tuple[str, ...]]]:
    """Receptacle type -> object types it can hold, and object type -> its abilities (as PDDL predicates)."""
    known = rules()
    contains = {f"{r.lower()}type": objects for r, objects in known.contains.items()}
    abilities: dict[str, tuple[str, ...]] = {}
    for kind in known.object_types | set(LAMP_PLACES):
        own = [name.lower() for name, kinds in known.abilities.items() if kind in kinds]
        own += ["isreceptacleobject"] if kind in known.movable else []
        own += ["pickupable"] if kind not in LAMP_PLACES else []
        abilities[kind] = tuple(own)
    return contains, abilities


def object_abilities(kind: str) -> tuple[str, ...]:
    """The PDDL predicates that hold for every object of type `kind` (lamps cannot be picked up)."""
    return _type_tables()[1][kind]


def world_from_game(game: Game) -> World:
    """The world of a generated game, without going through its PDDL text."""
    contains, ability_table = _type_tables()
    fixtures = _fixtures(game.scene)
    kept = sorted((fixtures[i] for i in game.receptacles), key=lambda f: f.id)
    row = {f.id: r for r, f in enumerate(kept)}
    ids = object_ids(game)
    order = sorted(range(len(ids)), key=ids.__getitem__)
    kinds = [game.objects[slot][0] for slot in order]
    names = display_names(sorted([f.id for f in kept] + ids))
    start = place_id(start_place(game))
    place_number = {p: i for i, p in enumerate(sorted({f.place for f in kept} | {start}))}
    inside: list[list[int]] = [[] for _ in kept]
    at = []
    abilities: dict[str, list[int]] = {name: [] for name in ABILITIES}
    for o, slot in enumerate(order):
        holder = fixtures[game.objects[slot][1]]
        inside[row[holder.id]].append(o)
        at.append(frozenset((place_number[holder.place],)))
        for name in ability_table[kinds[o]]:
            abilities[name].append(o)
    return World(
        receptacle_names=tuple(names[f.id] for f in kept),
        receptacle_types=tuple(f.type for f in kept),
        place_of=tuple(place_number[f.place] for f in kept),
        openable=tuple(f.openable for f in kept),
        opened=(False,) * len(kept),
        fits=tuple(frozenset(o for o, kind in enumerate(kinds) if kind in contains[f.type]) for f in kept),
        object_names=tuple(names[ids[slot]] for slot in order),
        object_types=tuple(kind.lower() + "type" for kind in kinds),
        abilities={name: frozenset(members) for name, members in abilities.items()},
        states={name: frozenset() for name in STATES},
        holds_inside={},
        inside=tuple(map(tuple, inside)),
        at=tuple(at),
        places=len(place_number),
        start=place_number[start],
        task_type=game.task_type,
        target=game.target.lower() + "type",
        parent=game.parent.lower() + "type",
        sentence=game.sentence,
    )
