"""TextWorld-Express (Jansen and Côté 2022): eight small text games, played by its own engine in a JVM beside the worker.

It comes in through the door that is open to everybody: `env.name=ratchet.envs.textworld_express:TextWorldExpress`. A game and a
seed give a task; its seeds 0–999 are for training, 10000–10999 for development and 20000–20999 for testing, each with objects of
their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from ratchet.envs.base import Expert, Task, Turn
from ratchet.envs.jvm import call, launch, one_line
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.section import Section

NAME = "textworld-express"
Game = Literal["cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder"]
AGENTS = {
    "cookingworld": "CookingWorldGoldAgent",
    "twc": "TWCGoldAgent",
    "coin": "CoinGoldAgent",
    "mapreader": "MapReaderGoldAgent",
    "arithmetic": "ArithmeticGoldAgent",
    "sorting": "SortingGoldAgent",
    "simonsays": "SimonSaysGoldAgent",
    "peckingorder": "PeckingOrderGoldAgent",
}
FOLDS = {"train": range(1000), "dev": range(10000, 11000), "test": range(20000, 21000)}
SEEDS = {
    "train": FOLDS["train"],
    "seen": FOLDS["train"][::-1],  # the last ones; train takes the first ones
    "select": FOLDS["dev"][0::2],
    "confirm": FOLDS["dev"][1::2],
    "test": FOLDS["test"],
}
WANDERERS = ("cookingworld", "twc", "coin")  # whose agents walk at random until they find what they look for, or give up
GOLD_TRIES = 40  # of a wanderer
GOLD_CHOICE = 3  # of so many tries that came to an end the shortest is taken
_TASK_ID = re.compile(r"([a-z]+)(?:\(([^()]*)\))?-(\d+)")


def make(heap_mb: int) -> TextWorldExpressEnv:
    """One environment; all of a process share one JVM, in which one plays after the other."""
    return TextWorldExpressEnv(_shared_gateway(heap_mb))


@cache
def _shared_gateway(heap_mb: int) -> Any:
    return _gateway(heap_mb)


def _gateway(heap_mb: int) -> Any:
    spec = find_spec("textworld_express")
    if spec is None or spec.origin is None:
        raise RatchetError("TextWorld-Express is not installed; `pip install 'ratchet-agents[textworld-express]'`")
    return launch(Path(spec.origin).parent / "textworld-express.jar", heap_mb)


@cache
def engine_version() -> str:
    """Version of the installed textworld-express. Raises RatchetError where there is none."""
    try:
        return version("textworld-express")
    except PackageNotFoundError:
        raise RatchetError("TextWorld-Express is not installed; `pip install 'ratchet-agents[textworld-express]'`") from None


class TextWorldExpressEnv:
    """Plays any task of any of the games. The first observation is the task's description and the room.

    `score` is the engine's normalised score, `solved` its own success; a wrong move ends some games with `done` alone.
    """

    name = NAME

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway
        self.version = engine_version()
        self._engine = gateway.jvm.textworldexpress.runtime.PythonInterface()
        self._loaded: tuple[str, str] | None = None
        self._last: Turn | None = None

    def reset(self, task: Task) -> Turn:
        """Starts `task`. Raises RatchetError for one that is not of this benchmark or not of this version."""
        if (task.env, task.env_version) != (self.name, self.version):
            raise RatchetError(f"task {task.task_id!r} is of {task.env} {task.env_version}, not of {self.name} {self.version}; make it again")
        self._start(task.task_id)
        said = self._said(self._new_game)
        text = f"{call(self._engine.getTaskDescription).strip()}\n\n{said['observation'].strip()}"
        self._last = _turn(text, said, 0.0, valid=True)
        return self._last

    def step(self, action: str) -> Turn:
        """Plays one action. What is not among the valid ones does nothing, and the engine says so."""
        last = self._last
        if last is None:
            raise RatchetError("a TextWorld-Express episode was stepped before reset; call reset(task) first")
        if last.done:
            self._last = Turn(last.observation, last.admissible, 0.0, last.score, last.solved, True, False)
            return self._last
        said = self._said(self._engine.stepJSON, one_line(action))
        self._last = _turn(said["observation"].strip(), said, last.score, valid=action.strip() in last.admissible)
        return self._last

    def gold(self, task_id: str) -> list[str]:
        """Actions that solve the task, verified by playing them; [] where none were found. The same in every process."""
        self._start(task_id)
        game, seed, _ = self._parts
        tries, enough = (GOLD_TRIES, GOLD_CHOICE) if game in WANDERERS else (1, 1)
        found: list[list[str]] = []
        for attempt in range(tries):
            call(self._new_game)
            agent = getattr(self.gateway.jvm.textworldexpress.goldagent, AGENTS[game])(call(self._engine.game))
            path = call(agent.mkGoldPath, self.gateway.jvm.scala.util.Random(seed * GOLD_TRIES + attempt))
            if path._1:
                found.append(list(path._2)[1:])  # the first is what the engine does by itself at a start
            if len(found) == enough:
                break
        return next((actions for actions in sorted(found, key=len) if self._solves(actions)), [])

    def close(self) -> None:
        """Lets the game go; the JVM ends with its process."""
        self._last = None

    def _start(self, task_id: str) -> None:
        """Makes the engine ready for the task's game."""
        found = _TASK_ID.fullmatch(task_id)
        if found is None or found[1] not in AGENTS:
            raise RatchetError(f"{task_id!r} is no task of TextWorld-Express; they are called GAME-SEED, such as coin-17")
        game, parameters, seed = found[1], found[2] or "", int(found[3])
        fold = next((name for name, seeds in FOLDS.items() if seed in seeds), None)
        if fold is None:
            raise RatchetError(f"{task_id!r}: {seed} is no seed of TextWorld-Express; they are {', '.join(_span(one) for one in FOLDS.values())}")
        if self._loaded != (game, parameters):
            self._loaded = None
            said = call(self._engine.load, game, parameters)
            if call(self._engine.gameGenerator) is None:  # for some mistakes it says nothing
                why = said.strip() or "NAME=NUMBER, separated by commas, is expected"
                raise RatchetError(f"TextWorld-Express does not take {game} with {parameters!r}: {why}; correct env.options.parameters")
            self._loaded = (game, parameters)
        self._parts = (game, seed, fold)

    def _new_game(self) -> str:
        _, seed, fold = self._parts
        return self._engine.generateNewGameJSON(seed, fold, False)

    def _solves(self, actions: list[str]) -> bool:
        said = self._said(self._new_game)
        for action in actions:
            said = self._said(self._engine.stepJSON, action)
        return bool(said["tasksuccess"])

    def _said(self, function: Any, *arguments: Any) -> dict[str, Any]:
        return json.loads(call(function, *arguments))


def _span(seeds: range) -> str:
    return f"{seeds[0]}-{seeds[-1]}"


def _turn(text: str, said: dict[str, Any], before: float, valid: bool) -> Turn:
    score = min(1.0, max(0.0, float(said["score"])))
    solved = bool(said["tasksuccess"])
    return Turn(text, tuple(sorted(said["validActions"])), score - before, score, solved, solved or bool(said["taskfailure"]), valid)


class GoldPath:
    """The expert: the actions that `prepare` found and verified, without thoughts. It looks at nothing."""

    def __init__(self, paths: Mapping[str, list[str]]) -> None:
        self.paths = paths
        self._left: list[str] = []

    def reset(self, task: Task, turn: Turn) -> None:
        """Raises RatchetError for a task without a path; there are some for the training games only."""
        if task.task_id not in self.paths:
            raise RatchetError(f"there is no gold path for {task.task_id!r}; the expert plays the tasks of train and seen")
        self._left = list(self.paths[task.task_id])

    def act(self, turn: Turn) -> tuple[str, str]:
        """The next action; at the end of the path, where somebody else played too, any that changes nothing."""
        return "", self._left.pop(0) if self._left else turn.admissible[0]


class TextWorldExpress:
    """Which games, how large, and in how much memory."""

    class Options(Section):
        games: list[Game] = Field(list(get_args(Game)), min_length=1, description="games to play; each gets an equal part of every split")
        parameters: dict[Game, str] = Field({}, description="generation parameters by game, such as coin: numLocations=5,includeDoors=0")
        heap_mb: int = Field(128, ge=64, description="MiB of heap of a worker's JVM, from 64")

    factory = "ratchet.envs.textworld_express:make"

    def prepare(self, folder: Path, settings: Any, counts: Mapping[str, int], seed: int) -> dict[str, list[Task]]:
        """Writes `gold.json`, the verified paths of train and seen. A training game for which none is found is left out.

        Raises RatchetError where more tasks are asked for than there are.
        """
        options = settings.options
        tasks = {split: self._tasks(split, counts[split], options) for split in SEEDS}
        twice = {task.task_id for task in tasks["train"]} & {task.task_id for task in tasks["seen"]}
        if twice:
            raise RatchetError(
                f"prepare.games: train and seen share the {len(FOLDS['train'])} training seeds of each of {len(options.games)} games; lower train or seen"
            )
        gateway = _gateway(options.heap_mb)  # one of its own, which ends here
        try:
            environment = TextWorldExpressEnv(gateway)
            paths = {task.task_id: environment.gold(task.task_id) for split in ("train", "seen") for task in tasks[split]}
        finally:
            gateway.shutdown()
        paths = {task_id: path for task_id, path in paths.items() if path}
        write_json(folder / "gold.json", paths)
        return {**tasks, "train": [task for task in tasks["train"] if task.task_id in paths]}

    def _tasks(self, split: str, count: int, options: Any) -> list[Task]:
        """`count` tasks, game by game in turn, so that any first part of them is balanced."""
        seeds, games = SEEDS[split], options.games
        if count > len(seeds) * len(games):
            raise RatchetError(f"prepare.games.{split}: {count} is above the {len(seeds) * len(games)} that these games have; lower it")
        return [self._task(split, games[i % len(games)], seeds[i // len(games)], options.parameters) for i in range(count)]

    def _task(self, split: str, game: str, seed: int, parameters: Mapping[str, str]) -> Task:
        task_id = f"{game}({parameters[game]})-{seed}" if parameters.get(game) else f"{game}-{seed}"
        return Task(NAME, engine_version(), task_id, split, stratum=game, cluster=f"{game}-{seed}")

    def arguments(self, folder: Path, settings: Any, splits: list[str]) -> dict[str, Any]:
        """Keyword arguments of `make`."""
        return {"heap_mb": settings.options.heap_mb}

    def expert(self, folder: Path) -> Expert:
        """The gold paths of `folder`."""
        return GoldPath(_paths(folder / "gold.json"))


@cache
def _paths(file: Path) -> Mapping[str, list[str]]:
    return read_json(file)
