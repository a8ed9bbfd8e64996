"""Houses and orders from numbers: a task's id says all that there is to know, so nothing is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Literal, get_args

from ratchet.envs.base import Task
from ratchet.envs.proving_ground.rules import FRAGILE, IDLE, PLAIN, ROOMS, SOLD, THINGS, Item, Order, World
from ratchet.errors import RatchetError

NAME = "proving-ground"
VERSION = 2
Kind = Literal["plain", "fragile", "two"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Strata of tasks that need action: one plain item, one fragile item, two items of either kind."""
FIRST_HOUSE = {"train": 0, "seen": 0, "select": 1_000_000, "confirm": 2_000_000, "test": 3_000_000}
"""Splits have houses of their own; `seen` has other orders in the houses of train."""
_TASK_ID = re.compile(rf"({'|'.join([IDLE, *KINDS])})-(\d+)-(\d+)-(\d+)")


def version_of(rooms: int, items: int, noise: int) -> str:
    """All that a task's text depends on beside its id."""
    return f"{VERSION}+{rooms}r{items}i{noise}n"


def tasks_of(split: str, count: int, *, seed: int, orders: int, idle_share: float, kinds: list[Kind], version: str) -> list[Task]:
    """`count` tasks, `orders` of them a house. Any first part of them has the shares of strata that all of them have."""
    tasks = []
    for n in range(count):
        house, order = divmod(n, orders)
        house, order = house + FIRST_HOUSE[split], order + (orders if split == "seen" else 0)
        idle_before, idle_then = (int((n + more) * idle_share + 1e-9) for more in (0, 1))
        kind = IDLE if idle_then > idle_before else kinds[(n - idle_before) % len(kinds)]
        tasks.append(Task(NAME, version, f"{kind}-{seed}-{house}-{order}", split, stratum=kind, cluster=f"house-{seed}-{house}"))
    return tasks


@lru_cache(maxsize=4096)
def world_of(task_id: str, rooms: int, items: int, noise: int) -> World:
    """The task of this id in a house of `rooms` rooms and `items` items. Raises RatchetError where it is no such id."""
    found = _TASK_ID.fullmatch(task_id)
    if found is None:
        raise RatchetError(f"{task_id!r} is no task of the proving ground; they are called KIND-SEED-HOUSE-ORDER, such as two-1-0-3")
    kind, house, order = found[1], f"{found[2]}-{found[3]}", found[4]
    draw = Random(f"house {house}")
    names = draw.sample(ROOMS, rooms)
    things = draw.sample(THINGS, items)
    draw = Random(f"order {house}-{order}-{kind}")
    homes = [draw.randrange(rooms) for _ in things]  # of a day, not of a house: there is nothing about a house to learn by heart
    ordered = draw.sample(range(items), 2 if kind == "two" else 1)
    states = [draw.choice((PLAIN, FRAGILE, SOLD)) for _ in things]
    for at in ordered:
        states[at] = {IDLE: SOLD, "plain": PLAIN, "fragile": FRAGILE}.get(kind) or draw.choice((PLAIN, FRAGILE))
    return World(
        task_id,
        tuple(names),
        tuple(Item(*one) for one in zip(things, homes, states, strict=True)),
        tuple(Order(at, draw.choice([room for room in range(rooms) if room != homes[at]])) for at in ordered),
        tuple(draw.sample(range(items), items)),
        draw.randrange(rooms),
        noise,
    )


def shape_of(options: Mapping[str, int]) -> dict[str, int]:
    """What of the options `world_of` and `version_of` take."""
    return {key: options[key] for key in ("rooms", "items", "noise")}
