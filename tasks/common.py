"""What every stage shares: settings, a scratch folder that survives a kill, outs that appear whole, progress lines."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ratchet.errors import RatchetError
from ratchet.files import let_go, read_json, sha256_files, sha256_json, storage_trouble, write_json
from ratchet.installed import require_current
from ratchet.rollout.players import Players
from ratchet.settings import Settings, load
from tasks import outs, throughput
from tasks.progress import Progress as Progress, say as say

SKIPPED = "skipped.json"
SCRATCH = ".ratchet/scratch"


def stage_entry(root: Path, name: str, key: str | None) -> dict[str, Any]:
    """The stage's deps, outs and metrics from dvc.yaml, with `${key}`, `${item.…}` and `${last}` filled in from params.yaml."""
    stages = yaml.safe_load((root / "dvc.yaml").read_text())["stages"]
    params = yaml.safe_load((root / "params.yaml").read_text())
    entry = stages[name]
    values = {"${last}": str(params["last"])}
    if "foreach" in entry:
        items = params[entry["foreach"].removeprefix("${").removesuffix("}")]
        if key not in items:
            raise RatchetError(f"{name}: no `{key}` among {', '.join(map(str, items))} in params.yaml; give one of these")
        item = items[key] if isinstance(items, dict) else {}
        values |= {"${key}": str(key), **{f"${{item.{k}}}": str(v) for k, v in (item or {}).items()}}
        entry = entry["do"]

    def fill(text: str) -> str:
        for mark, value in values.items():
            text = text.replace(mark, value)
        return text

    return {kind: [fill(path) for path in entry.get(kind, [])] for kind in ("deps", "outs", "metrics")}


@dataclass
class Stage:
    """One run of one stage in a workspace.

    Outs in progress live in `.ratchet/scratch/STAGE/HASH`, since DVC deletes a stage's outs before it runs it; HASH covers
    deps, settings and code, so a stage that was killed finds its own parts and never those of another configuration.
    """

    root: Path
    settings: Settings
    name: str
    key: str | None = None
    began: float = field(default_factory=time.monotonic)
    _players: Players | None = None

    def __post_init__(self) -> None:
        self.settings = self.settings.of_round(self.key)
        self.entry = stage_entry(self.root, self.name, self.key)
        self.title = self.name if self.key is None else f"{self.name}@{self.key}"
        parent = self.root / SCRATCH / self.title
        self.scratch = parent / self._hash()
        for other in parent.iterdir() if parent.is_dir() else ():
            if other != self.scratch:
                let_go(other)
        outs.forget_recorded(parent.parent, self.root)
        if outs.recorded(self.scratch, self.root):
            let_go(self.scratch)
        self.scratch.mkdir(parents=True, exist_ok=True)
        let_go(self.scratch / outs.OUTS)  # what a kill left half written is no out
        throughput.begin(self.root, self.title, self.settings)

    def _hash(self) -> str:
        files: list[Path] = []
        for dep in self.entry["deps"]:
            path = self.root / dep
            files += sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts) if path.is_dir() else [path]
        names = [str(path.relative_to(self.root)) for path in files if path.exists()]
        digest = sha256_files([path for path in files if path.exists()])
        return sha256_json([names, digest, self.settings.model_dump(mode="json")])[:16]

    def call_players(self) -> None:
        """Starts them, as early as a stage knows that it will play with a model: they import what they need meanwhile."""
        if self.settings.env.players > 1:
            assert self.players

    @property
    def players(self) -> Players:
        """The processes that play models in this stage."""
        if self._players is None:
            self._players = Players(self.settings.env.players, self.settings.env.threads)
        return self._players

    def close(self) -> None:
        """Ends the players."""
        if self._players is not None:
            self._players.close()
            self._players = None

    def path(self, relative: str) -> Path:
        """A path of the workspace; inputs are read from here."""
        return self.root / relative

    def out(self, relative: str) -> Path:
        """Where an out is written before it is whole. `relative` has to be (inside) one of the stage's outs or metrics."""
        declared = self._declared()
        if not any(relative == one or relative.startswith(one + "/") for one in declared):
            raise ValueError(f"{self.title}: {relative} is no out of this stage in dvc.yaml ({', '.join(declared)})")
        path = self.scratch / outs.OUTS / relative
        self.fault("out")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def metrics(self, value: dict[str, Any]) -> None:
        write_json(self.out(self.entry["metrics"][0]), value)

    def finish(self) -> None:
        """Makes the outs whole and lays them into the workspace. From the first to the last of it a kill loses nothing."""
        for relative in self._declared():
            if not (self.scratch / outs.OUTS / relative).exists():
                raise FileNotFoundError(f"{self.title} did not write {relative}")
        self.close()
        self.fault("whole")
        outs.keep(self.scratch)
        self.place()
        throughput.end(self.root, self.title)
        say(f"{self.title} done in {time.monotonic() - self.began:.1f} s")

    def place(self) -> None:
        """Lays the outs, whole in scratch, into the workspace."""
        outs.place(self.scratch, self.root, self._declared(), lambda: self.fault("place"))
        self.fault("placed")

    def _declared(self) -> list[str]:
        return [*self.entry["outs"], *self.entry["metrics"]]

    def fault(self, point: str) -> None:
        """Kills this process group with SIGKILL where RATCHET_FAULT names this stage and `point`: for benchmarks/durability.py."""
        if os.environ.get("RATCHET_FAULT") == f"{self.title}:{point}":
            os.killpg(0, signal.SIGKILL)

    def skip(self, reason: str) -> None:
        """Writes `{"skipped": reason}` as metrics and into every out; whoever reads them passes it on."""
        for relative in self.entry["outs"]:
            folder = self.out(relative)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / SKIPPED, {"skipped": reason})
        for relative in self.entry["metrics"]:
            write_json(self.out(relative), {"skipped": reason})
        say(f"{self.title}: skipped, {reason}")
        throughput.drop()
        self.finish()


def skipped(folder: Path) -> str | None:
    """Why the stage that wrote this out did nothing, or None."""
    file = folder / SKIPPED
    return read_json(file)["skipped"] if file.is_file() else None


def stop_reason(stage: Stage, previous: str) -> str | None:
    """Why the run stops before this round, or None. Written by the previous round's decision."""
    decision = read_json(stage.path(f"data/rounds/{previous}/decision/decision.json"))
    return None if decision["stop"] is None else f"the run stopped in round {decision['round']}: {decision['stop']}"


@contextmanager
def tensorboard(stage: Stage) -> Iterator[Callable[[str, float, int], None]]:
    """`log(name, value, step)` into logs/tensorboard/STAGE: a log, never an out, because its bytes hold the time."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(stage.root / "logs" / "tensorboard" / stage.title))

    def log(name: str, value: float, step: int) -> None:
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    try:
        yield log
    finally:
        writer.close()


def perform(stage: Stage, run: Callable[[Stage], None]) -> None:
    """Runs the stage, unless a run that was killed had made all its outs already: then these are put in their places."""
    if outs.kept(stage.scratch, stage.root):
        say(f"{stage.title}: was done when it was killed; its outs are put in place")
        stage.place()
        return
    try:
        run(stage)
    finally:
        stage.close()


def main(name: str, run: Callable[[Stage], None], key: str | None = None) -> None:
    """The command line of a stage: reads params.yaml of the current folder. Exits 2 with one line on bad input and where the disk is
    full or may not be written to, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(prog=f"python -m tasks.{name}", description=(run.__doc__ or "").strip().split("\n\n")[0])
    if key is not None:
        parser.add_argument(f"--{key}", required=True, dest="key", help=f"which {key} of params.yaml")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|accelerate)\.")  # what they owe one another
    try:
        root = Path.cwd()
        stage = Stage(root, load(root / "params.yaml"), name, getattr(arguments, "key", None))
        require_current(root, stage.entry["deps"])
        perform(stage, run)
    except RatchetError as error:
        _end(name, str(error), 2)
    except KeyboardInterrupt:
        _end(name, "interrupted; run it again to go on from what is done", 130)
    except Exception as error:
        trouble = storage_trouble(error)
        if trouble is None:
            raise
        _end(name, f"{trouble}, then run it again: what is done is kept in {SCRATCH}", 2)


def _end(name: str, text: str, code: int) -> NoReturn:
    print(f"{name}: {text}", file=sys.stderr)
    raise SystemExit(code) from None
