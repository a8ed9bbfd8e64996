"""The reference engine: TextWorld itself, with its repeated parsing cached (outputs stay the same byte for byte)."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ratchet.envs.alfworld.world import display_names
from ratchet.errors import RatchetError

_TRANSLATIONS_KEPT = 8  # per process; one is used twice a game (load and reset) and each holds a whole grounded problem


def available() -> bool:
    """Whether the optional textworld extra is installed."""
    return importlib.util.find_spec("textworld") is not None and importlib.util.find_spec("fast_downward") is not None


@contextmanager
def _own_argv_and_stdout() -> Iterator[None]:
    """The planner's translator overwrites `sys.argv` and swaps `sys.stdout`; both come back whatever happens."""
    argv, stdout = sys.argv, sys.stdout
    try:
        yield
    finally:
        sys.argv, sys.stdout = argv, stdout


def _cached_parse(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Parses each text once. The symbols are changed while text is derived from them, so every caller gets a copy."""
    kept = functools.lru_cache(maxsize=4096)(parse)

    def cached(*args: Any, **kwargs: Any) -> Any:
        return copy.deepcopy(kept(*args, **kwargs))

    return cached


@functools.lru_cache(maxsize=1)
def _pddl_module() -> Any:
    """TextWorld's PDDL environment module, its slow pure functions wrapped in caches, once a process."""
    if not available():
        raise RatchetError("the real ALFWorld engine needs the textworld extra: run `make install-all`, or use engine 'compiled'")
    with _own_argv_and_stdout():
        module = importlib.import_module("textworld.envs.pddl.pddl")
        textgen = importlib.import_module("textworld.envs.pddl.textgen")
        logic = importlib.import_module("textworld.logic")
        fast_downward = importlib.import_module("fast_downward")
    textgen._parse_and_convert = _cached_parse(textgen._parse_and_convert)
    logic.Rule.parse_conjunctive_query = functools.lru_cache(maxsize=4096)(logic.Rule.parse_conjunctive_query)
    fast_downward.pddl2sas = functools.lru_cache(maxsize=_TRANSLATIONS_KEPT)(fast_downward.pddl2sas)
    return module


class TextworldGame:
    """One game in the real engine, with the same surface as `CompiledGame`."""

    def __init__(self, data: dict[str, Any]) -> None:
        """`data`: a parsed `game.tw-pddl`. Raises RatchetError where textworld is not installed."""
        module = _pddl_module()
        core = importlib.import_module("textworld.core")
        self._env = module.PddlEnv(core.EnvInfos(won=True, admissible_commands=True))
        with _own_argv_and_stdout():
            self._env.load(data)
        self._name_entities()
        self._state: Any = None

    def _name_entities(self) -> None:
        """Shows `mug 1` for `mug_bar_...`, as ALFWorld's own wrapper does."""
        infos = self._env._entity_infos
        names = display_names(sorted(id_ for id_ in infos if "_bar_" in id_))
        for id_, info in infos.items():
            info.name = names.get(id_, id_ + " ")

    def reset(self) -> str:
        """Starts over; the intro text with the task."""
        with _own_argv_and_stdout():
            self._state = self._env.reset()
        return self._state.feedback

    def step(self, command: str) -> tuple[str, bool]:
        """(text, whether the command was admissible)."""
        valid = command.strip() in self._state["_valid_commands"]
        with _own_argv_and_stdout():
            self._state, _, _ = self._env.step(command)
        return self._state.feedback, valid

    @property
    def won(self) -> bool:
        """Whether the goal holds in the present state."""
        return bool(self._state["won"])

    @property
    def admissible(self) -> tuple[str, ...]:
        """The commands that do something now, sorted as strings."""
        return tuple(self._state["admissible_commands"])
