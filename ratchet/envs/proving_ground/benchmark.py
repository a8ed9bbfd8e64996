"""The proving ground as an environment of the pipeline: options, tasks, expert."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ratchet.envs.base import Expert, Task
from ratchet.envs.proving_ground.generate import KINDS, Kind, shape_of, tasks_of, version_of
from ratchet.envs.proving_ground.players import Clerk, Verbose
from ratchet.envs.proving_ground.rules import DO_NOTHING, WORDS
from ratchet.files import read_json, write_json
from ratchet.section import Section

OPTIONS_FILE = "options.json"


class ProvingGroundOptions(Section):
    """`env.options` of the proving ground."""

    rooms: int = Field(5, ge=3, le=10, description="rooms of a house, 3 to 10")
    items: int = Field(4, ge=2, le=12, description="items in a house, 2 to 12; the more, the easier to take for another")
    noise: int = Field(2, ge=0, le=64, description="distractor words in every observation")
    idle_share: float = Field(0.2, ge=0, le=1, description="share of tasks in which doing nothing succeeds, 0 to 1")
    kinds: list[Kind] = Field(list(KINDS), min_length=1, description="kinds of the other tasks, in equal shares: plain, fragile, two")
    orders: int = Field(8, ge=1, description="tasks a house; houses are what is resampled together")
    thoughts: bool = Field(True, description="whether the expert says what it goes by before it acts")
    verbosity: int = Field(0, ge=0, le=64, description="words without meaning that the expert writes before an action, on average")


class ProvingGround:
    """Which houses, which orders, and how much noise. Tasks are made of numbers; nothing is stored but the options."""

    Options: ClassVar[type[Section]] = ProvingGroundOptions
    factory = "ratchet.envs.proving_ground.env:make"
    words = WORDS
    null_action = DO_NOTHING

    def prepare(self, folder: Path, settings: Any, counts: Mapping[str, int], seed: int) -> dict[str, list[Task]]:
        """Writes `options.json`, which the expert reads, and returns `counts[split]` tasks of each split."""
        own = settings.options
        write_json(folder / OPTIONS_FILE, own.model_dump(mode="json"))
        version = version_of(**shape_of(own.model_dump()))
        chosen = {"seed": seed, "orders": own.orders, "idle_share": own.idle_share, "kinds": own.kinds, "version": version}
        return {split: tasks_of(split, count, **chosen) for split, count in counts.items()}

    def arguments(self, folder: Path, settings: Any, splits: list[str]) -> dict[str, Any]:
        """Keyword arguments of `make`."""
        return shape_of(settings.options.model_dump())

    def expert(self, folder: Path) -> Expert:
        """The clerk, as talkative as the options of `folder` want it."""
        own = read_json(folder / OPTIONS_FILE)
        clerk = Clerk(own["thoughts"])
        return Verbose(clerk, own["verbosity"]) if own["verbosity"] else clerk
