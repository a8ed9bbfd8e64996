"""Games generated from the wheel's own rooms: six task types, any room size, the same for the same seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ratchet.envs.alfworld.layouts import (
    ALFWORLD_VERSION,
    LAMP_PLACES,
    TASK_TYPES,
    Scene,
    goal_templates,
    held_out_scenes,
    rules,
    scene,
)
from ratchet.envs.base import Task
from ratchet.errors import RatchetError

SPLITS = ("train", "seen", "select", "confirm", "test")

APPLIANCE = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}

CLUTTER_PER_RECEPTACLE = 0.9
MAX_COPIES = 3  # of one object type in a room; the wheel's generator uses the same bound
ATTEMPTS = 200


@dataclass(frozen=True, slots=True)
class Game:
    """One generated game, compact: its PDDL and grammar texts are rendered only when they are needed.

    `receptacles` are positions in `scene(number).receptacles` (sorted); `objects` are sorted pairs of an object type and
    the position (in the scene) of the receptacle it starts in. `parent` is the receptacle type to fill, or the lamp type.
    """

    task_id: str
    task_type: str
    scene: int
    room: str
    sentence: str
    target: str
    parent: str
    receptacles: tuple[int, ...]
    objects: tuple[tuple[str, int], ...]

    @property
    def version(self) -> str:
        """The environment version: the wheel's, marked as generated with its room size."""
        return f"{ALFWORLD_VERSION}+generated.{self.room}"


def room_name(max_receptacles: int | None) -> str:
    """`r6` for rooms of at most six receptacles, `full` for the whole floor plan."""
    return "full" if max_receptacles is None else f"r{max_receptacles}"


def content_hash(game: Game, wording: bool) -> str:
    """Hex SHA-256 of what the game is; without `wording`, games that differ only in their sentence coincide."""
    parts = [game.task_type, str(game.scene), game.target, game.parent, repr(game.receptacles), repr(game.objects)]
    if wording:
        parts += [game.room, game.sentence]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def identified(game: Game) -> Game:
    """`game` under the task id its content gives it: `generated/ROOM/TASK TYPE/FloorPlanN/HASH`."""
    digest = content_hash(game, wording=True)[:12]
    return replace(game, task_id=f"generated/{game.room}/{game.task_type}/FloorPlan{game.scene}/{digest}")


def split_scenes(split: str) -> tuple[int, ...]:
    """The scenes `split` draws from. Raises RatchetError for an unknown split."""
    if split not in SPLITS:
        raise RatchetError(f"unknown split {split!r}; use one of {', '.join(SPLITS)}")
    if split == "test":
        return rules().test_scenes
    held_out = held_out_scenes()
    if split in ("select", "confirm"):
        return held_out
    return tuple(number for number in rules().train_scenes if number not in held_out)


def belongs(game: Game, split: str) -> bool:
    """Splits that share scenes share no game, whatever their seeds: the content decides which of them may hold it."""
    bucket = int(content_hash(game, wording=False)[:8], 16) % 8
    if split in ("train", "seen"):
        return (bucket == 0) == (split == "seen")
    if split in ("select", "confirm"):
        return (bucket % 2 == 0) == (split == "select")
    return True


def generate_games(
    split: str,
    n: int,
    seed: int,
    max_receptacles: int | None,
    scenes: Sequence[int] | None = None,
    task_types: Sequence[str] = TASK_TYPES,
) -> list[Game]:
    """`n` different solvable games of `split`, balanced over `task_types` and, within a type, over its scenes.

    `max_receptacles` bounds the room (None: the whole floor plan); `scenes` narrows the split's own scenes. The same
    arguments give the same games anywhere. Raises RatchetError where the arguments allow no game or too few.
    """
    allowed = _allowed_scenes(split, scenes)
    if max_receptacles is not None and max_receptacles < 4:
        raise RatchetError(f"max_receptacles is {max_receptacles}; a room needs at least 4")
    for kind in task_types:
        if kind not in TASK_TYPES:
            raise RatchetError(f"unknown task type {kind!r}; use some of {', '.join(TASK_TYPES)}")
    rng = random.Random(f"{split}/{seed}/{room_name(max_receptacles)}")
    turns = {kind: _scene_cycle(kind, allowed, rng) for kind in task_types}
    games: list[Game] = []
    seen: set[str] = set()
    for i in range(n):
        kind = task_types[i % len(task_types)]
        game = _new_game(split, kind, turns[kind], max_receptacles, seen, rng)
        seen.add(content_hash(game, wording=False))
        games.append(game)
    return games


def _allowed_scenes(split: str, scenes: Sequence[int] | None) -> tuple[int, ...]:
    own = split_scenes(split)
    if scenes is None:
        return own
    strangers = sorted(set(scenes) - set(own))
    if strangers or not scenes:
        raise RatchetError(f"scenes {strangers or 'none'} are not of split {split!r}, whose scenes are {list(own)}")
    return tuple(scenes)


def _scene_cycle(kind: str, scenes: Sequence[int], rng: random.Random) -> Iterator[int]:
    """Scenes that allow `kind`, shuffled anew each round, so that each gets its share."""
    usable = [number for number in scenes if _choices(number, kind)]
    if not usable:
        raise RatchetError(f"none of the scenes {list(scenes)} allows the task type {kind}; give other scenes or task types")

    def cycle() -> Iterator[int]:
        while True:
            rng.shuffle(usable)
            yield from list(usable)

    return cycle()


def _new_game(split: str, kind: str, scenes: Iterator[int], max_receptacles: int | None, seen: set[str], rng: random.Random) -> Game:
    for _ in range(ATTEMPTS):
        game = _draw(scene(next(scenes)), kind, max_receptacles, rng)
        if game is not None and belongs(game, split) and content_hash(game, wording=False) not in seen:
            return identified(game)
    raise RatchetError(f"no further different game of type {kind} for split {split!r} was found; ask for fewer games or larger rooms")


@lru_cache(maxsize=2048)
def _choices(number: int, kind: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(object type, parents) that task type `kind` can use in the scene; a parent is a receptacle type or a lamp type."""
    room, known = scene(number), rules()
    types = {r.type for r in room.receptacles}
    ability, appliance = APPLIANCE.get(kind, ("", ""))
    if appliance and appliance not in types:
        return ()
    found = []
    for name in room.objects:
        if ability and name not in known.abilities[ability]:
            continue
        holders = {t for t in types if name in known.contains[t]}
        if kind == "look_at_obj_in_light":
            parents = [lamp for lamp in room.lamps if types & set(LAMP_PLACES[lamp])] if holders else []
        else:
            parents = sorted(t for t in holders if t != appliance and holders - {t})
        if parents:
            found.append((name, tuple(parents)))
    return tuple(found)


def _draw(room: Scene, kind: str, max_receptacles: int | None, rng: random.Random) -> Game | None:
    """One random game, or None where this draw does not work out (the caller draws again)."""
    target, parents = rng.choice(_choices(room.number, kind))
    parent = rng.choice(parents)
    kept = _furnish(room, kind, target, parent, max_receptacles, rng)
    if kept is None:
        return None
    objects = _place_targets(room, kind, target, parent, kept, rng) + _clutter(room, kind, target, parent, kept, rng)
    fields = {"obj": target.lower(), "recep": parent.lower(), "toggle": parent.lower()}
    sentence = rng.choice(goal_templates()[kind][1]).format(**fields)
    return Game("", kind, room.number, room_name(max_receptacles), sentence, target, parent, tuple(kept), tuple(sorted(objects)))


def _furnish(room: Scene, kind: str, target: str, parent: str, max_receptacles: int | None, rng: random.Random) -> list[int] | None:
    """Which receptacles (positions, sorted) the room keeps: what the task needs, then others at random.

    A bounded room keeps one receptacle a place, so that each can be walked to; a full one shares places as its plan does.
    """
    everything = range(len(room.receptacles))
    if max_receptacles is None:
        return list(everything)
    kept: list[int] = []
    for types in _needed(room, kind, target, parent):
        places = {room.receptacles[i].place for i in kept}
        fitting = [i for i in everything if room.receptacles[i].type in types and room.receptacles[i].place not in places]
        if not fitting:
            return None
        kept.append(rng.choice(fitting))
    others = [i for i in everything if i not in kept]
    rng.shuffle(others)
    places = {room.receptacles[i].place for i in kept}
    for i in others:
        if len(kept) < max_receptacles and room.receptacles[i].place not in places:
            kept.append(i)
            places.add(room.receptacles[i].place)
    return sorted(kept)


def _needed(room: Scene, kind: str, target: str, parent: str) -> list[set[str]]:
    """Types of which the room must keep one each: the source, then the destination or lamp place, then the appliance."""
    holders = {name for name, objects in rules().contains.items() if target in objects}
    if kind == "look_at_obj_in_light":
        return [holders, set(LAMP_PLACES[parent])]
    needed = [holders - {parent}, {parent}]
    return needed + [{APPLIANCE[kind][1]}] if kind in APPLIANCE else needed


def _holding(room: Scene, kept: Sequence[int], target: str, without: str = "") -> list[int]:
    contains = rules().contains
    return [i for i in kept if room.receptacles[i].type != without and target in contains[room.receptacles[i].type]]


def _place_targets(room: Scene, kind: str, target: str, parent: str, kept: Sequence[int], rng: random.Random) -> list[tuple[str, int]]:
    """The objects the task asks for, never where they would already count as placed."""
    places = _holding(room, kept, target, without=parent)
    copies = (2 if kind == "pick_two_obj_and_place" else 1) + (rng.random() < 0.3)
    return [(target, rng.choice(places)) for _ in range(copies)]


def _clutter(room: Scene, kind: str, target: str, parent: str, kept: Sequence[int], rng: random.Random) -> list[tuple[str, int]]:
    """Other objects, and the lamp: the one that the task names, or in other tasks every second time any of the scene's."""
    placed: list[tuple[str, int]] = []
    looking = kind == "look_at_obj_in_light"
    for lamp in [parent] if looking else room.lamps:
        stands = [i for i in kept if room.receptacles[i].type in LAMP_PLACES[lamp]]
        if stands and (looking or rng.random() < 0.5):
            placed.append((lamp, rng.choice(stands)))
    copies: dict[str, int] = {}
    for _ in range(round(CLUTTER_PER_RECEPTACLE * len(kept))):
        name = rng.choice(room.objects)
        places = _holding(room, kept, name)
        if name != target and places and copies.get(name, 0) < MAX_COPIES:
            copies[name] = copies.get(name, 0) + 1
            placed.append((name, rng.choice(places)))
    return placed


def game_task(game: Game, split: str) -> Task:
    """The task of `game`: its stratum is the task type, its cluster the scene."""
    return Task("alfworld", game.version, game.task_id, split, stratum=game.task_type, cluster=f"FloorPlan{game.scene}")
