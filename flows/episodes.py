"""`ratchet episode`: one episode turn by turn, found by the beginning of its id in any run's files."""

import json as json_module
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from flows.commands import root
from flows.text import one_line, visible
from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.store.index import GLOBS, workspaces

IN_PROGRESS = ".ratchet/scratch/*/*/parts/*.episodes.parquet"  # shards of stages that have not ended yet
MIN_PREFIX = 4
LEFT_OUT = ("prompt_ids", "reply_ids", "logprobs", "entropy")  # in --json; they are for machines that read the Parquet file itself


@dataclass(frozen=True)
class Found:
    """An episode, its steps in order, and the file that holds it."""

    run_id: str
    path: Path
    episode: dict[str, Any]
    steps: list[dict[str, Any]]


def show_episode(episode_id: str, run: str | None, json: bool) -> None:
    """`ratchet episode`."""
    found = find_episode(root(), episode_id, run)
    if json:
        steps = [{key: value for key, value in step.items() if key not in LEFT_OUT} for step in found.steps]
        print(json_module.dumps({"run": found.run_id, "file": str(found.path), "episode": found.episode, "steps": steps}, indent=1))
        return
    print("\n".join(lines(found)))


def find_episode(checkout: Path, prefix: str, run: str | None = None) -> Found:
    """The episode whose id begins with `prefix`; the same one in several files (a run that was repeated) is taken from the first.

    Raises RatchetError for none, for several, and for fewer than four characters.
    """
    if len(prefix) < MIN_PREFIX:
        raise RatchetError(f"episode {prefix!r}: type at least {MIN_PREFIX} characters of its id (the report and its JSON show ids)")
    ids: dict[str, tuple[str, Path]] = {}
    for run_id, path in _files(checkout, run):
        column = read_table(path, "episodes", ["episode_id"])["episode_id"]
        for one in column.filter(pc.starts_with(column, prefix)).to_pylist():
            ids.setdefault(one, (run_id, path))
    if not ids:
        raise RatchetError(f"no episode {prefix!r} in {run or 'any run'}; `ratchet runs` lists the runs, a run's report.html shows episodes with ids")
    if len(ids) > 1:
        shown = ", ".join(sorted(ids)[:3])
        raise RatchetError(f"episode {prefix!r} is the beginning of {len(ids)} ids ({shown}); type more of it, or say which --run")
    episode_id, (run_id, path) = next(iter(ids.items()))
    return Found(run_id, path, *_read(path, episode_id))


def _files(checkout: Path, run: str | None) -> Iterator[tuple[str, Path]]:
    """(run id, episodes file), the newest run first."""
    known = workspaces(checkout)
    if run is not None and run not in [name for name, _ in known]:
        raise RatchetError(f"--run {run}: no such run; `ratchet runs` lists them")
    for run_id, workspace in reversed(known):
        if run in (None, run_id):
            for pattern in (*GLOBS["episodes"], IN_PROGRESS):
                yield from ((run_id, path) for path in sorted(workspace.glob(pattern)) if not path.name.startswith("."))


def steps_path(episodes: Path) -> Path:
    """The file of steps beside a file of episodes."""
    return episodes.with_name(episodes.name.replace("episodes.parquet", "steps.parquet"))


def _read(path: Path, episode_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    episodes = read_table(path, "episodes")
    steps = read_table(steps_path(path), "steps")
    episode = episodes.filter(pc.equal(episodes["episode_id"], episode_id)).to_pylist()[0]
    return episode, steps.filter(pc.equal(steps["episode_id"], episode_id)).sort_by("t").to_pylist()


def lines(found: Found) -> Iterator[str]:
    """The episode for a terminal. What was written by a model or an environment is escaped, so it can only be read."""
    one = found.episode
    yield f"episode {one_line(one['episode_id'])}"
    yield f"  run {found.run_id}, {found.path}"
    yield f"  {one_line(str(one['env']))} {one_line(str(one['task_id']))} ({one_line(str(one['stratum']))}), {one_line(str(one['split']))}"
    yield f"  policy {one_line(str(one['policy_id']))}, round {one['round']}, iteration {one['iteration']}, sample {one['sample']}"
    yield f"  {_end(one)}, score {one['score']:g}, {one['n_steps']} steps, {one['n_tokens']} generated tokens"
    for step in found.steps:
        yield ""
        yield f"[{step['t']}] {_indented(step['observation'] or '')}"
        yield f"  « {_indented(step['reply'] or '')}"
        flags = [text for text, holds in _flags(step) if holds]
        if flags:
            yield f"    ({', '.join(flags)})"


def _flags(step: dict[str, Any]) -> list[tuple[str, bool]]:
    return [
        ("no action in the expected format", not step["format_ok"]),
        ("not admissible", not step["valid"]),
        ("nothing changed", bool(step["repeated"])),
        (f"reward {step['reward'] or 0:g}", bool(step["reward"])),
    ]


def _end(episode: dict[str, Any]) -> str:
    if episode["error"] is not None:
        return f"ended by an error: {one_line(episode['error'])}"
    return f"{'solved' if episode['solved'] else 'not solved'}{', truncated' if episode['truncated'] else ''}"


def _indented(text: str) -> str:
    return visible(text).replace("\n", "\n    ")
