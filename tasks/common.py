"""What every stage shares: settings, a scratch folder that survives a kill, outs that appear whole, progress lines."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ratchet.errors import RatchetError
from ratchet.files import read_json, sha256_files, sha256_json, write_json
from ratchet.installed import require_current
from ratchet.settings import Settings, load
from tasks import throughput
from tasks.progress import Progress as Progress, say as say

SKIPPED = "skipped.json"


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

    def __post_init__(self) -> None:
        self.entry = stage_entry(self.root, self.name, self.key)
        self.title = self.name if self.key is None else f"{self.name}@{self.key}"
        parent = self.root / ".ratchet" / "scratch" / self.title
        self.scratch = parent / self._hash()
        if parent.is_dir():
            for other in parent.iterdir():
                if other != self.scratch:
                    shutil.rmtree(other)
        self.scratch.mkdir(parents=True, exist_ok=True)
        throughput.begin(self.root, self.title, self.settings)

    def _hash(self) -> str:
        files: list[Path] = []
        for dep in self.entry["deps"]:
            path = self.root / dep
            files += sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts) if path.is_dir() else [path]
        names = [str(path.relative_to(self.root)) for path in files if path.exists()]
        digest = sha256_files([path for path in files if path.exists()])
        return sha256_json([names, digest, self.settings.model_dump(mode="json")])[:16]

    def path(self, relative: str) -> Path:
        """A path of the workspace; inputs are read from here."""
        return self.root / relative

    def out(self, relative: str) -> Path:
        """Where an out is written before it is whole. `relative` has to be (inside) one of the stage's outs or metrics."""
        declared = [*self.entry["outs"], *self.entry["metrics"]]
        if not any(relative == one or relative.startswith(one + "/") for one in declared):
            raise ValueError(f"{self.title}: {relative} is no out of this stage in dvc.yaml ({', '.join(declared)})")
        path = self.scratch / "outs" / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def metrics(self, value: dict[str, Any]) -> None:
        write_json(self.out(self.entry["metrics"][0]), value)

    def finish(self) -> None:
        """Renames all outs into the workspace and lets the scratch folder go."""
        for relative in [*self.entry["outs"], *self.entry["metrics"]]:
            source, target = self.scratch / "outs" / relative, self.root / relative
            if not source.exists():
                raise FileNotFoundError(f"{self.title} did not write {relative}")
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            elif target.exists() or target.is_symlink():
                target.unlink()
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
        shutil.rmtree(self.scratch)
        throughput.end(self.root, self.title)
        say(f"{self.title} done in {time.monotonic() - self.began:.1f} s")

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


def main(name: str, run: Callable[[Stage], None], key: str | None = None) -> None:
    """The command line of a stage: reads params.yaml of the current folder, exits 2 with one line on bad input."""
    parser = argparse.ArgumentParser(prog=f"python -m tasks.{name}", description=(run.__doc__ or "").strip().split("\n\n")[0])
    if key is not None:
        parser.add_argument(f"--{key}", required=True, dest="key", help=f"which {key} of params.yaml")
    arguments = parser.parse_args()
    try:
        root = Path.cwd()
        stage = Stage(root, load(root / "params.yaml"), name, getattr(arguments, "key", None))
        require_current(root, stage.entry["deps"])
        run(stage)
    except RatchetError as error:
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
