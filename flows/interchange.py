"""`ratchet import` and `ratchet export-episodes`: conversations in and out."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from flows import workspace
from flows.commands import root
from flows.text import one_line
from ratchet.episodes.files import read_table, write_table
from ratchet.episodes.formats import FORMATS
from ratchet.episodes.interchange import conversation, read_file
from ratchet.errors import RatchetError
from ratchet.files import sha256_files, write_bytes, write_json
from ratchet.store.episodes import steps_path
from ratchet.store.index import GLOBS
from ratchet.yaml_files import read_yaml

SHOWN = 10  # lines left out that are named on the terminal; all of them are in import.json


def import_file(path: Path, env: str | None, action_format: str | None) -> None:
    """`ratchet import`: into imports/NAME-HASH, whose name is what `demonstrate.imported` takes."""
    checkout = root()
    settings = read_yaml(checkout / "params.yaml")["env"]
    form = action_format or settings["action_format"]
    if form not in FORMATS:
        raise RatchetError(f"--format {form}: no such format; there is {', '.join(FORMATS)}")
    found = read_file(path, env or settings["name"], form)
    episodes, steps = found.tables()
    part = checkout / workspace.IMPORTS / ".part"
    write_table(part / "episodes.parquet", "episodes", episodes)
    write_table(part / "steps.parquet", "steps", steps)
    digest = sha256_files([part / "episodes.parquet", part / "steps.parquet"])[:12]
    name = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', path.stem).strip('-') or 'file'}-{digest}"
    solved = sum(one["solved"] for one in found.episodes)
    record = {"source": path.name, "action_format": form, "episodes": len(found.episodes), "solved": solved, "left_out": found.problems}
    folder = checkout / workspace.IMPORTS / name
    for file in part.iterdir():
        write_bytes(folder / file.name, file.read_bytes())
        file.unlink()
    part.rmdir()
    write_json(folder / "import.json", record)
    print(f"{folder}: {len(found.episodes)} episodes ({solved} solved), {len(found.steps)} steps; {len(found.problems)} lines left out")
    for problem in found.problems[:SHOWN]:
        print(f"  {one_line(problem)}")
    if len(found.problems) > SHOWN:
        print(f"  … all of them in {folder / 'import.json'}")
    print(f"use them as demonstrations: ratchet run --set demonstrate.imported={name}")


def export_episodes(target: str, run: str | None, stages: list[str], solved: bool, policies: list[str]) -> None:
    """`ratchet export-episodes`; `-` is standard output, and what is said then goes to standard error."""
    checkout = root()
    runs = workspace.list_runs(checkout)
    if run is None and not runs:
        raise RatchetError("no runs yet; start one with `ratchet run`")
    folder = workspace.find(checkout, run) if run not in (None, workspace.HERE) else checkout if run else runs[-1].workspace
    files = {stage_of(folder, path): path for pattern in GLOBS["episodes"] for path in sorted(folder.glob(pattern))}
    unknown = [name for name in stages if name not in files]
    if unknown or not files:
        raise RatchetError(f"--stage {', '.join(unknown) or 'all'}: no episodes of it in {folder.name}; there is {', '.join(files) or 'none yet'}")
    chosen = [path for name, path in files.items() if not stages or name in stages]
    if target == "-":
        count, errors = _write(sys.stdout, chosen, solved, policies)
    else:
        with Path(target).open("w", encoding="utf-8") as file:
            count, errors = _write(file, chosen, solved, policies)
    print(f"{count} episodes of {folder.name} written; {errors} that ended by an error left out", file=sys.stderr)


def stage_of(folder: Path, path: Path) -> str:
    """`data/rounds/1/harvest/episodes.parquet` → `harvest@1`, `data/final/episodes.parquet` → `final`."""
    parts = path.relative_to(folder).parts
    return f"{parts[3]}@{parts[2]}" if parts[1] == "rounds" else parts[1]


def _write(file: TextIO, paths: list[Path], solved: bool, policies: list[str]) -> tuple[int, int]:
    count = errors = 0
    for path in paths:
        episodes = read_table(path, "episodes")
        broken = pc.is_valid(episodes["error"])
        errors += pc.sum(broken).as_py() or 0
        kept = episodes.filter(pc.invert(broken))
        kept = kept.filter(kept["solved"]) if solved else kept
        kept = kept.filter(pc.is_in(kept["policy_id"], value_set=pa.array(policies))) if policies else kept
        for one in _conversations(kept, read_table(steps_path(path), "steps", ["episode_id", "t", "observation", "reply"])):
            file.write(json.dumps(one, ensure_ascii=False) + "\n")
            count += 1
    return count, errors


def _conversations(episodes: pa.Table, steps: pa.Table) -> Iterator[dict[str, Any]]:
    by_id: dict[str, list[dict[str, Any]]] = {}
    for step in steps.sort_by([("episode_id", "ascending"), ("t", "ascending")]).to_pylist():
        by_id.setdefault(step["episode_id"], []).append(step)
    yield from (conversation(one, by_id.get(one["episode_id"], [])) for one in episodes.to_pylist())
