"""One look of the monitor: the champion plays again on a panel of its own, and what was served is compared with what it does.

A look is known by what it saw: a look that sees the same again is the same look, and tells nobody twice. Looks lie in
`.ratchet/monitor/ID`: monitor.json, report.html, and the episodes that were played.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.evaluating import STAGE, drawn, lay, recorded
from flows.links import MONITOR, monitor_folder
from flows.served_episodes import Served, new_ones
from monitoring.drift import Limits, compare_sides, verdict
from monitoring.drift_columns import Side, side_of
from monitoring.regression import judge
from ratchet.envs.base import Task
from ratchet.envs.benchmarks import benchmark, look_in
from ratchet.episodes.files import read_table, write_table
from ratchet.errors import RatchetError
from ratchet.evaluation.compare import compare
from ratchet.evaluation.panels import Panel, make_panel, read_panel, write_panel
from ratchet.evaluation.promotion import level_of, open_spending
from ratchet.evaluation.summary import summarise
from ratchet.files import read_json, sha256_files, sha256_json, write_json
from ratchet.settings import Settings, load
from ratchet.store import outbox
from ratchet.store.champions import champions, find
from ratchet.store.locks import locked
from tasks.common import Stage, say

PANEL = "confirm"  # the split whose scenes train nothing; the panel's own games are others than the runs'
SEED = 791_931  # of the panel's games; no run's by default
FEWEST = 20  # tasks of which a rate says something
TRAIN = 64  # games that a benchmark prepares beside the panel's
KINDS = ("outcomes", "episodes", "steps")


@dataclass(frozen=True)
class Look:
    """`record` is monitor.json, `events` what it put into the outbox, `folder` where all of it lies."""

    record: dict[str, Any]
    events: list[outbox.Event]
    folder: Path


def look(root: Path, line: str | None, tasks: int, served: Path) -> Look:
    """Plays the champion of `line` on up to `tasks` tasks of the monitor's panel, compares, and puts events into the outbox.

    What it is compared with: the first look at this version on this panel (an environment or a library that changed under it), else the
    last look at another champion of the line. `served` is a folder of episodes that were served since the last look; none is fine.
    Raises RatchetError where no line has a champion, or its weights or games are gone.
    """
    registry = root / "registry"
    card = find(registry, "champion" if line is None else f"champion:{line}", line)
    version = card["version"]
    line = line or next(name for name, one in sorted(champions(registry).items()) if one == version)
    look_in(root)
    player = recorded(root, version)
    settings = load(player.run / "params.yaml")
    with locked(root, "monitor"):
        panel, games, note = monitor_panel(root, player.run, settings, tasks)
        earlier = [one for one in looks(root) if one["line"] == line]
        work = root / ".ratchet" / "monitor" / ".work"
        shutil.rmtree(work, ignore_errors=True)  # of a look that was killed
        lay(work, settings, games)
        say(f"monitor: {version} on {len(panel.tasks)} tasks of {settings.env.name}, panel {panel.hash[:12]}")
        stage = Stage(work, settings, STAGE)
        try:
            played = dict(zip(KINDS, player.play(stage, panel, "monitor"), strict=True))
        finally:
            stage.close()
        for kind, table in played.items():
            write_table(work / f"{kind}.parquet", kind, table)
        found = new_ones(served, settings, {digest for one in earlier for digest in one["served"]["files"]})
        record = {"line": line, "version": version, "run": card["runs"][-1]["run"], "round": card["round"], "note": note}
        record |= {"env": settings.env.name, "summary": summarise(played["outcomes"]), "served": found.told()}
        same_panel = [one for one in earlier if one["summary"]["panel_hash"] == panel.hash]
        record |= _compared(root, settings, version, played, same_panel, found)
        record["id"] = _id(work, record)
        folder = _keep(root, work, record)
    return Look(record, _tell(root, record), folder)


def looks(root: Path) -> list[dict[str, Any]]:
    """Records of all looks, first to last."""
    found = [read_json(path) for path in (root / ".ratchet" / "monitor").glob("[0-9a-f]*/monitor.json")]
    return sorted(found, key=lambda one: one["at"])


def monitor_panel(root: Path, run: Path, settings: Settings, tasks: int) -> tuple[Panel, Path, str | None]:
    """(panel, folder with its games, what to say about it): games that no panel of the run holds, of scenes that train nothing.

    Where a benchmark has no further ones (an official split that the run uses up), it is the run's own confirm panel, and that is said.
    """
    games = root / ".ratchet" / "evaluations" / f"monitor-{_games_key(settings, tasks)}"
    own = {path.stem: read_panel(path) for path in sorted((run / "data" / "panels").glob("*.json"))}
    if PANEL not in own:
        raise RatchetError(f"{run / 'data/panels'}: the games of the champion's run are gone; run `dvc checkout` in {run}")
    path = games / "panel.json"
    if not path.is_file():
        taken = {task.task_id for panel in own.values() for task in panel.tasks}
        write_panel(path, make_panel(PANEL, _fresh(games, settings, tasks, taken) or drawn(own[PANEL].tasks, tasks)))
    panel = read_panel(path)
    if panel.tasks[0].task_id not in {task.task_id for task in own[PANEL].tasks}:
        return panel, games, None
    return panel, run, "the benchmark has no games beyond those of the run, so the panel is of its confirm panel"


def _games_key(settings: Settings, tasks: int) -> str:
    """Of what games depend on, whatever a run's seed and limits are, so that champions of several runs play the same."""
    env = settings.env
    return sha256_json([env.name, env.code, env.options.model_dump(mode="json"), tasks])[:12]


def _fresh(games: Path, settings: Settings, tasks: int, taken: set[str]) -> list[Task]:
    counts = {name: min(count, TRAIN) for name, count in settings.prepare.games.model_dump().items()}
    counts |= {PANEL: settings.prepare.games.confirm + tasks}
    (games / "data" / "games").mkdir(parents=True, exist_ok=True)
    try:
        found = benchmark(settings.env.name).prepare(games / "data" / "games", settings.env, counts, SEED)[PANEL]
    except RatchetError:  # it has fewer than were asked for
        return []
    fresh = [task for task in found if task.task_id not in taken]
    return drawn(fresh, tasks) if len(fresh) >= min(tasks, FEWEST) else []


def _compared(
    root: Path, settings: Settings, version: str, played: dict[str, pa.Table], earlier: Sequence[dict[str, Any]], served: Served
) -> dict[str, Any]:
    """Regression and drift of this look: `{"against", "comparison", "regression", "drift"}`."""
    limits = {name: Limits(one["warn"], one["fail"]) for name, one in settings.drift.model_dump().items() if isinstance(one, dict)}
    now, findings = _side(settings, played), []
    mine = [one for one in earlier if one["version"] == version]
    reference = mine[0] if mine else earlier[-1] if earlier else None
    comparison = judged = None
    if reference is not None:
        tables = {kind: read_table(monitor_folder(root, reference["id"]) / f"{kind}.parquet", kind) for kind in KINDS}
        level = level_of(open_spending(settings.decide.alpha, len(earlier)))
        comparison = compare(tables["outcomes"], played["outcomes"], level=level, resamples=settings.decide.resamples)
        judged = judge(comparison, settings.decide.max_stratum_loss)
        findings += compare_sides(_side(settings, tables), now, limits, "the first look at it" if mine else "the champion before")
    if served.episodes is not None and served.steps is not None:
        side = _side(settings, {"episodes": served.episodes, "steps": served.steps})
        kept = {name: limit for name, limit in limits.items() if name in served.columns}
        findings += [one | {"current_is": "served"} for one in compare_sides(now, side, kept, "what was served, from the champion")]
    against = None if reference is None else {name: reference[name] for name in ("id", "version", "at")}
    return {"against": against, "comparison": comparison, "regression": judged, "drift": verdict(findings)}


def _side(settings: Settings, tables: dict[str, pa.Table]) -> Side:
    return side_of(tables["episodes"], tables["steps"], null_action=getattr(benchmark(settings.env.name), "null_action", None))


def _id(work: Path, record: dict[str, Any]) -> str:
    return sha256_json([record["version"], record["line"], record["served"]["files"], sha256_files([work / f"{kind}.parquet" for kind in KINDS])])[:12]


def _keep(root: Path, work: Path, record: dict[str, Any]) -> Path:
    """Lays a look where looks are. One that saw the same before stays, with the time of this one beside its own."""
    from monitoring.alerts import utc

    folder, now = monitor_folder(root, record["id"]), utc().isoformat(timespec="seconds")
    if (folder / "monitor.json").is_file():
        before = read_json(folder / "monitor.json")
        write_json(folder / "monitor.json", before | {"seen": [*before["seen"], now]})
        record |= {name: before[name] for name in ("at", "against", "comparison", "regression", "drift")} | {"seen": [*before["seen"], now]}
    else:
        from flows.look_page import look_page

        record |= {"at": now, "seen": [now]}
        folder.mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            shutil.move(work / f"{kind}.parquet", folder / f"{kind}.parquet")
        (folder / "report.html").write_text(look_page(record), encoding="utf-8")
        write_json(folder / "monitor.json", record)
    shutil.rmtree(work, ignore_errors=True)
    return folder


def _tell(root: Path, record: dict[str, Any]) -> list[outbox.Event]:
    """Puts what the look found into the outbox; returns what was new."""
    about = {"source": "monitor", MONITOR: record["id"]}
    found = []
    judged = record["regression"]
    if judged is not None and judged["regression"]:
        gain = record["comparison"]["gain"]
        found.append(("model.regression", f"the champion {record['version']} does worse than it did: {'; '.join(judged['reasons'])}", {"gain": gain}))
    drifted = [one for one in record["drift"]["columns"] if one["level"] != "ok"]
    if drifted:
        told = "; ".join(f"{one['detail']} ({one['observed']:.3g}, {one['level']}, against {one['against']})" for one in drifted)
        found.append(("drift.detected", f"line {record['line']}: {told}", {"columns": [one["column"] for one in drifted]}))
    events = [
        outbox.Event(kind, record["run"], record["round"], record["line"], record["version"], text, about | data) for kind, text, data in found
    ]
    return [event for event in events if outbox.put(root, event)]
