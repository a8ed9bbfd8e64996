"""The installed alfworld wheel's own rooms, constants, goals and grammar, read without importing its heavy modules."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from ratchet.errors import RatchetError

ALFWORLD_VERSION = "0.4.2"

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

ROOM_KINDS = ("kitchen", "living", "bedroom", "bathroom")
HELD_OUT_PER_KIND = 3

# Real scenes hold lamps inside (on) a receptacle too; the constants do not say where, so this is ours.
LAMP_PLACES = {
    "DeskLamp": ("Desk", "SideTable", "Dresser", "DiningTable", "CoffeeTable", "Shelf", "TVStand"),
    "FloorLamp": ("SideTable", "CoffeeTable", "DiningTable", "Dresser", "TVStand", "Desk", "Sofa", "ArmChair"),
}


def wheel_folder() -> Path:
    """The installed alfworld package's folder, found without importing it (its import writes to the home folder)."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise RatchetError("the alfworld package is not installed; its rooms and grammar are needed: run `make install`")
    return Path(next(iter(spec.submodule_search_locations)))


def _lone_module(relative: str) -> ModuleType:
    """Runs one file of the wheel by itself: its package's `__init__` would import heavy dependencies."""
    path = wheel_folder() / relative
    if not path.is_file():
        raise RatchetError(f"the installed alfworld package lacks {relative}; reinstall alfworld=={ALFWORLD_VERSION} (`make install`)")
    spec = importlib.util.spec_from_file_location("ratchet_alfworld_" + path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wheel_text(relative: str) -> str:
    path = wheel_folder() / relative
    if not path.is_file():
        raise RatchetError(f"the installed alfworld package lacks {relative}; reinstall alfworld=={ALFWORLD_VERSION} (`make install`)")
    return path.read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def domain_text() -> str:
    """The PDDL domain all games share."""
    return _wheel_text("data/alfred.pddl")


@lru_cache(maxsize=1)
def grammar_text() -> str:
    """The text grammar all games share; its task is `UNKNOWN GOAL`."""
    return _wheel_text("data/alfred.twl2")


@dataclass(frozen=True, slots=True)
class Rules:
    """What the wheel's constants say about object and receptacle types (CamelCase names, as in the constants)."""

    train_scenes: tuple[int, ...]
    test_scenes: tuple[int, ...]
    object_types: frozenset[str]  # what can be picked up and fits somewhere
    contains: Mapping[str, frozenset[str]]  # receptacle type -> object types it can hold
    abilities: Mapping[str, frozenset[str]]  # Heatable, Coolable, Cleanable, Toggleable, Sliceable -> object types
    openable: frozenset[str]
    movable: frozenset[str]  # objects that are themselves receptacles (bowl, box, ...)


@lru_cache(maxsize=1)
def rules() -> Rules:
    """The wheel's constants in the few tables that games need."""
    constants = _lone_module("gen/constants.py")
    movable = frozenset(constants.MOVABLE_RECEPTACLES)
    contains = {name: frozenset(objects) for name, objects in constants.VAL_RECEPTACLE_OBJECTS.items() if name not in movable}
    return Rules(
        train_scenes=tuple(constants.TRAIN_SCENE_NUMBERS),
        test_scenes=tuple(constants.TEST_SCENE_NUMBERS),
        object_types=frozenset().union(*contains.values()),
        contains=contains,
        abilities={name: frozenset(objects) for name, objects in constants.VAL_ACTION_OBJECTS.items()},
        openable=frozenset(constants.OPENABLE_CLASS_LIST),
        movable=movable,
    )


@lru_cache(maxsize=1)
def goal_templates() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Task type -> (PDDL goal with `{obj}`, `{recep}`, `{toggle}`, sentences with the same fields)."""
    library = _lone_module("gen/goal_library.py").gdict
    return {kind: (library[kind]["pddl"], tuple(library[kind]["templates"])) for kind in TASK_TYPES}


@dataclass(frozen=True, slots=True)
class Receptacle:
    """One fixed receptacle of a scene: its id (`Cabinet|+00.65|...`), type and the place one stands at to use it."""

    id: str
    type: str
    place: tuple[int, int, int, int]  # x and z in quarter metres, rotation in quarter turns, horizon in degrees


@dataclass(frozen=True, slots=True)
class Scene:
    """One floor plan: its receptacles in a fixed order and the object types found there (sorted)."""

    number: int
    kind: str
    receptacles: tuple[Receptacle, ...]
    objects: tuple[str, ...]
    lamps: tuple[str, ...]


def room_kind(number: int) -> str:
    """Kitchens are floor plans 1-30, living rooms 201-230, bedrooms 301-330, bathrooms 401-430."""
    return ROOM_KINDS[max(number // 100 - 1, 0)]


def _receptacle(key: str, pose: list[float]) -> Receptacle:
    parts = key.split("|")
    x, z, rotation, horizon = pose
    place = (round(x * 4), round(z * 4), round(rotation / 90) % 4, round(horizon))
    return Receptacle(key, parts[-1] if len(parts) == 5 else parts[0], place)


@lru_cache(maxsize=256)
def scene(number: int) -> Scene:
    """Reads floor plan `number`. Raises RatchetError where the wheel has none."""
    folder = f"gen/layouts/FloorPlan{number}"
    poses: dict[str, list[float]] = json.loads(_wheel_text(folder + "-openable.json"))
    found = set(json.loads(_wheel_text(folder + "-objects.json")))
    known = rules()
    receptacles = tuple(_receptacle(key, pose) for key, pose in sorted(poses.items()) if _holds_things(key))
    return Scene(
        number=number,
        kind=room_kind(number),
        receptacles=receptacles,
        objects=tuple(sorted(found & known.object_types)),
        lamps=tuple(sorted(found & known.abilities["Toggleable"])),
    )


def _holds_things(key: str) -> bool:
    parts = key.split("|")
    return (parts[-1] if len(parts) == 5 else parts[0]) in rules().contains


@lru_cache(maxsize=1)
def held_out_scenes() -> tuple[int, ...]:
    """The 12 training scenes kept for the selection and confirmation panels: three of each kind of room.

    Evenly spaced among the scenes that allow every task type of their kind (a lamp that stands somewhere in living
    rooms and bedrooms), so that both panels hold all six task types.
    """
    chosen: list[int] = []
    for kind in ROOM_KINDS:
        usable = [n for n in rules().train_scenes if room_kind(n) == kind and _allows_its_tasks(scene(n))]
        step = len(usable) / HELD_OUT_PER_KIND
        chosen += [usable[int((i + 0.5) * step)] for i in range(HELD_OUT_PER_KIND)]
    return tuple(chosen)


def _allows_its_tasks(room: Scene) -> bool:
    types = {r.type for r in room.receptacles}
    if room.kind in ("living", "bedroom"):
        return any(types & set(LAMP_PLACES[lamp]) for lamp in room.lamps)
    return {"kitchen": {"SinkBasin", "Microwave", "Fridge"}, "bathroom": {"SinkBasin"}}[room.kind] <= types
