"""Plays a version on a panel outside a run: of its own run's games, or of any benchmark.

What is played lives in `.ratchet/evaluations/ID`, with games and finished shards, so the same call after a kill goes on there.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from flows.guiding import check_guide, guided, meter_folder
from flows.keys import in_environment
from ratchet.envs.base import Task
from ratchet.envs.benchmarks import benchmark, look_in
from ratchet.episodes.files import write_table
from ratchet.errors import RatchetError
from ratchet.evaluation.panels import Panel, make_panel, read_panel, write_panel
from ratchet.evaluation.summary import summarise
from ratchet.files import sha256_json, write_bytes
from ratchet.policies.served_settings import VERSION
from ratchet.rendering import render_params
from ratchet.settings import Settings, dump_params, load, parse
from ratchet.store.cards import Card, weights_of
from ratchet.store.champions import find
from ratchet.store.locks import locked
from ratchet.yaml_files import read_yaml
from tasks.common import Stage, say
from tasks.evaluate import play_panel, play_policy
from tasks.rollouts import check_failures, keyed_choice, served_policy

STAGE = "evaluate"
DVC_YAML = f"stages: {{{STAGE}: {{cmd: ''}}}}\n"  # a stage of its own, without deps and outs


def evaluate_version(
    root: Path, version: str, env: str | None, panel: str, tasks: int | None, *, guide: str | None = None, candidates: int = 4, meter: str | None = None
) -> dict[str, Any]:
    """Plays `version` (whatever `ratchet versions` and `champion` name, or `served:NAME` for a served model of params.yaml) and
    measures it; progress goes to standard output.

    `env` is a benchmark, or `BENCHMARK/PATTERN` for its tasks whose id or stratum matches (`*` and `?` stand for any text; a name
    also matches what it begins); by default the benchmark and games of the version's own run. `tasks` is the most tasks to
    play, drawn once for all from those of the panel, so every version plays the same. With `guide: meter` they are played once more, a
    progress meter (a folder, by default the newest of the version's run) choosing among `candidates` actions each turn.

    Returns the summary of `ratchet.evaluation.summary.summarise` (success with its Wilson interval, panel hash, `n`, strata, …)
    and `version`, `env`, `pattern`, `available` (tasks that match), `outcomes` (path of the Parquet file); guided, also what
    `flows.guiding.guided` returns.

    Raises RatchetError for an unknown version, weights that are gone, an unknown benchmark, panel or pattern.
    """
    if tasks is not None and tasks < 1:
        raise RatchetError(f"--tasks {tasks}: is not a count from 1; leave it out to play the whole panel")
    check_guide(guide, candidates)
    if guide is not None and version.startswith(VERSION):
        raise RatchetError(f"--guide {guide}: {version} is behind a server, which gives no several answers to try; evaluate a version of this checkout")
    player = _served(root, version.removeprefix(VERSION)) if version.startswith(VERSION) else recorded(root, version)
    name, _, pattern = (env or "").partition("/")
    look_in(root)  # an environment of one's own may be younger than the version's run
    settings = load(player.run / "params.yaml")
    own = name in ("", settings.env.name)
    if not own:
        settings = _with_benchmark(player.run, name)
    games = player.run if own and player.has_games else _prepared(root, settings)
    if not (games / "data" / "games").is_dir():
        raise RatchetError(f"{games / 'data/games'}: the games are gone; run `dvc checkout` in {games}, or name a benchmark with --env")
    whole = _panel(games, panel)
    matching = matching_tasks(whole.tasks, pattern)
    if not matching:
        strata = sorted({task.stratum for task in whole.tasks})
        raise RatchetError(f"--env {env}: no task of panel {panel} matches {pattern!r}; there is {', '.join(strata[:12])}")
    chosen = drawn(matching, tasks)
    part = whole if len(chosen) == len(whole.tasks) else make_panel(panel, chosen)
    few = f" (all that match; {tasks} were asked for)" if tasks is not None and tasks > len(chosen) else ""
    say(f"evaluate: {player.version} on {len(chosen)} tasks{few} of {settings.env.name} {panel}, panel {part.hash[:12]}")
    folder = _workspace(root, player, settings, games, part)
    chooses = None if guide is None else meter_folder(player.run, meter)
    told: dict[str, Any] = {}
    with locked(folder, STAGE):
        stage = Stage(folder, settings, STAGE)
        outcomes, _, _ = player.play(stage, part, panel)
        write_table(folder / "outcomes.parquet", "outcomes", outcomes)
        if chooses is not None:
            model, _ = _model_of(root, find(root / "registry", version))
            told = guided(stage, model, chooses, part, panel, candidates, games / "data" / "games", outcomes, folder)
    return {
        **summarise(outcomes),
        "version": player.version,
        "env": settings.env.name,
        "pattern": pattern or None,
        "available": len(matching),
        "outcomes": str(folder / "outcomes.parquet"),
        **told,
    }


@dataclass(frozen=True)
class Player:
    """Who is measured: `key` tells it from all others, `run` is the folder whose params.yaml says how it plays, and whose games
    it plays where it `has_games`."""

    version: str
    key: Any
    run: Path
    has_games: bool
    play: Callable[[Stage, Panel, str], tuple[Any, Any, Any]]


def recorded(root: Path, version: str) -> Player:
    card = find(root / "registry", version)
    model, run = _model_of(root, card)
    return Player(card["version"], card["version"], run, True, lambda stage, part, panel: play_panel(stage, model, part, panel))


def _served(root: Path, name: str) -> Player:
    known = load(root / "params.yaml").served
    if name not in known:
        raise RatchetError(f"served:{name}: params.yaml serves no model of this name; there is {', '.join(known) or 'none'} (docs/served.md)")
    one = known[name]
    if one.tokenizer is not None:
        one = one.model_copy(update={"tokenizer": str((root / one.tokenizer).resolve())})

    def play(stage: Stage, part: Panel, panel: str) -> tuple[Any, Any, Any]:
        with in_environment({name: one}), served_policy(stage, name, one, stage.settings.evaluate.temperature) as policy:
            return play_policy(stage, policy, part, panel, partial(check_failures, stage, name))

    return Player(VERSION + one.model, one.model_dump(mode="json"), root, False, play)


def _model_of(root: Path, card: Card) -> tuple[Path, Path]:
    """(model folder, workspace of the run that it is from)."""
    folder = weights_of(root, card)
    if folder is None:
        raise RatchetError(f"version {card['version']}: its weights are no longer on this machine; run `dvc checkout` in its run's folder")
    for parent in folder.parents:
        if (parent / "params.yaml").is_file():
            return folder, parent
    raise RatchetError(f"{folder}: lies in no run (no params.yaml above it), so nothing says how the version plays")


def _with_benchmark(run: Path, name: str) -> Settings:
    """The run's settings, with another benchmark and that one's defaults."""
    benchmark(name)
    return parse(render_params(read_yaml(run / "params.yaml"), {}, [f"env.name={name}"]), "--env")


def _prepared(root: Path, settings: Settings) -> Path:
    """A folder with games and panels of the settings' benchmark, made once."""
    counts = settings.prepare.games.model_dump()
    key = sha256_json([settings.env.model_dump(mode="json"), counts, settings.seed])[:12]
    folder = root / ".ratchet" / "evaluations" / f"games-{key}"
    with locked(root, "evaluations"):
        if not (folder / "whole").is_file():
            say(f"evaluate: prepares {settings.env.name}")
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "data" / "games").mkdir(parents=True)
            splits = benchmark(settings.env.name).prepare(folder / "data" / "games", settings.env, counts, settings.seed)
            for split, tasks in splits.items():
                write_panel(folder / "data" / "panels" / f"{split}.json", make_panel(split, tasks))
            write_bytes(folder / "whole", b"")
    return folder


def _panel(games: Path, name: str) -> Panel:
    path = games / "data" / "panels" / f"{name}.json"
    if not re.fullmatch(r"[a-z]+", name) or not path.is_file():
        known = sorted(file.stem for file in path.parent.glob("*.json"))
        raise RatchetError(f"--panel {name}: no such panel; there is {', '.join(known) or 'none, the run has not prepared its games'}")
    return read_panel(path)


def matching_tasks(tasks: Sequence[Task], pattern: str) -> list[Task]:
    """The tasks whose id or kind is `pattern`; only where there is none, those that match it."""
    return [task for task in tasks if pattern in (task.task_id, task.stratum)] or [task for task in tasks if matches(task, pattern)]


def matches(task: Task, pattern: str) -> bool:
    """Whether a task's id or kind is `pattern`, or begins with it as a name (`*` and `?` stand for any text); "" is all."""
    return not pattern or any(
        fnmatchcase(text, one) for text in (task.task_id, task.stratum) for one in (pattern, f"{pattern}[!a-zA-Z0-9]*")
    )


def drawn(tasks: Sequence[Task], count: int | None) -> list[Task]:
    """At most `count` tasks, the same for every version, in the panel's order."""
    if count is None or count >= len(tasks):
        return list(tasks)
    return [tasks[i] for i in sorted(keyed_choice(range(len(tasks)), count, len(tasks)))]


def _workspace(root: Path, player: Player, settings: Settings, games: Path, panel: Panel) -> Path:
    """Where the stage plays: params, games by a link, and its scratch folder."""
    key = sha256_json([player.key, panel.hash, settings.env.model_dump(mode="json"), settings.evaluate.model_dump(mode="json")])[:12]
    folder = root / ".ratchet" / "evaluations" / key
    lay(folder, settings, games)
    return folder


def lay(folder: Path, settings: Settings, games: Path) -> None:
    """Makes a folder in which the stage can play: params, a dvc.yaml, and the games of `games` by a link."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "params.yaml", dump_params(settings.model_dump(mode="json")).encode())
    write_bytes(folder / "dvc.yaml", DVC_YAML.encode())
    link = folder / "data" / "games"
    link.unlink(missing_ok=True)
    link.symlink_to((games / "data" / "games").resolve(), target_is_directory=True)
