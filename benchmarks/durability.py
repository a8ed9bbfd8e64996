"""Kills that a run survives: `kill -9` in every stage, while it computes and while it writes, and between stages.

    python -m benchmarks.durability --json benchmarks/results/durability.json

Each case begins from a checkout whose run stands right before one stage. `ratchet run` is started and killed there, then started
again to its end, and what it leaves (every out, dvc.lock, the registry's cards and index, clocks apart) is compared with a run that
nobody disturbed. DVC's cache may restore what lies behind the stage, which it does from the very same inputs alone. Two cases run at
a time, each in a checkout of its own, whose undisturbed runs are compared as well.

Kills while a stage computes come from outside, as SIGKILL to the run's process group at the moment when the stage has done a part of
its work (a shard, a checkpoint, some episodes); it has to take everything with it that the run started. Kills while it writes are
SIGKILL to the stage's own process group, DVC included, at a named point: before the outs are whole, between two outs, and after the
last, before DVC has recorded them. Stages that compute for less than a blink are killed at such a point in both cases.

Figures: kills, stages_total and stages_killed (of dvc.yaml, rounds apart), runs_identical (runs whose every byte is that of the
undisturbed run), episodes_lost (of its outs) and episodes_twice (in an out, or begun again by the environments although their shard was whole),
left_behind (kills that a process outlived), resume_overhead_s (median over the kills in stages: seconds spent in the stage before the
kill, and from the second start to its end, less what the stage takes undisturbed), total_s.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.durability_run import Lane, Run, command_of, parts_of, state_of

PACKAGES = ("ratchet-agents", "torch", "dvc", "prefect", "pyarrow", "safetensors", "sqlalchemy")
WRITING = ("whole", "place", "placed")
BETWEEN = ("demonstrate", "harvest@1", "evolve_online@1", "decide@1")
PARTS_OF_WORK = {  # what there is in a stage's scratch folder when it has done a part of its work
    "warm_start": "checkpoint/manifest.json",
    "harvest": "parts/*.json",
    "buffer": "parts/*.json",
    "fit_meter": "rl",  # its second stage has begun; it is fitted again from the start
    "fit_critic": "critic/manifest.json",
    "evolve_offline": "actor/manifest.json",
    "evolve_online": "checkpoint/manifest.json",
    "evaluate": "parts/*.json",
    "final": "parts/*.json",
}
QUICK = (("warm_start@actor", "compute"), ("harvest@1", "compute"), ("evolve_online@1", "place"), ("final", "placed"), ("decide@1", "between"))
LANES = 2


@dataclass(frozen=True)
class Case:
    """`when` is compute, between (after the stage), or a point of writing."""

    stage: str
    when: str


@dataclass
class Outcome:
    """What one kill came to. `overhead_s` is None for a kill between two stages."""

    case: Case
    differs: list[str]
    lost: int
    twice: int
    left_behind: bool
    overhead_s: float | None
    seconds: float

    def row(self) -> dict[str, Any]:
        overhead = None if self.overhead_s is None else round(self.overhead_s, 2)
        return {"stage": self.case.stage, "when": self.case.when, "differs": self.differs, "episodes_lost": self.lost, "episodes_twice": self.twice,
                "left_behind": self.left_behind, "overhead_s": overhead, "seconds": round(self.seconds, 1)}  # fmt: skip


def cases(order: list[str]) -> list[Case]:
    """Two kills a stage, the points of writing in turn, and some between stages."""
    points = itertools.cycle(WRITING)
    return [case for stage in order for case in (Case(stage, "compute"), Case(stage, next(points)))] + [Case(stage, "between") for stage in BETWEEN]


def moment(lane: Lane, run: Run, stage: str) -> Callable[[], bool] | None:
    """Whether a stage has done a part of its work; None for stages that take no time."""
    name = stage.partition("@")[0]
    journaled = command_of(stage).removeprefix("python -m tasks.")

    def some(pattern: str) -> bool:
        return any(True for scratch in lane.scratch(stage) for _ in scratch.glob(pattern))

    if name in PARTS_OF_WORK:
        return lambda: some(PARTS_OF_WORK[name])
    if name in ("prepare", "demonstrate", "label"):
        return lambda: lane.journaled()[journaled] > lane.resets[journaled] // 2
    if name in ("check", "drift"):
        return lambda: bool(lane.scratch(stage)) and run.begun(stage) is not None
    return None


def disturb(lane: Lane, case: Case) -> tuple[float, int, bool]:
    """Starts the run and kills it; returns (seconds in the stage, episodes of it that are whole, whether a process outlived it)."""
    fault = f"{case.stage}:{case.when}" if case.when in WRITING else ""
    watching = case.when == "between" or (not fault and moment_exists(case.stage))
    if not fault and not watching:
        fault = f"{case.stage}:out"
    run = Run(lane, "--resume", lane.run_id, fault=fault)
    if case.when == "between":
        reached = run.until(lambda: run.ended(case.stage) is not None)
    elif watching:
        condition = moment(lane, run, case.stage)
        assert condition is not None
        reached = run.until(condition)
    else:
        reached = run.wait() != 0 and run.begun(case.stage) is not None
    killed = time.monotonic()
    if watching and run.process.poll() is None:
        run.kill()
    if not reached or run.process.returncode == 0:
        raise RuntimeError(f"{case}: was not killed there\n{run.text()}")
    gone = lane.wait_until_gone()
    began = run.begun(case.stage)
    return killed - (began or killed), parts_of(lane, case.stage), not gone


def moment_exists(stage: str) -> bool:
    return stage.partition("@")[0] not in ("baseline", "decide", "report", "seal")


def play(lane: Lane, case: Case) -> Outcome:
    """One kill, the run after it, and the comparison."""
    began = time.monotonic()
    lane.restore(case.stage)
    spent, kept, left_behind = disturb(lane, case)
    lane.journal.unlink(missing_ok=True)
    run = Run(lane, "--resume", lane.run_id)
    if run.wait():
        raise RuntimeError(f"{case}: did not come to its end\n{run.text()}")
    found = state_of(lane)
    differs = [what for what in lane.expected if found[what] != lane.expected[what]]
    journaled = command_of(case.stage).removeprefix("python -m tasks.")
    begun, owed = lane.journaled()[journaled], lane.resets[journaled] - kept
    lost, twice = episodes(lane.expected["episodes"], found["episodes"])
    ended = run.ended(case.stage)
    overhead = None if case.when == "between" or ended is None else spent + ended - run.began - lane.seconds[case.stage]
    if case.when == "between":
        owed = 0
    return Outcome(case, differs, lost, twice + max(0, begun - owed), left_behind, overhead, time.monotonic() - began)


def episodes(expected: dict[str, Any], found: dict[str, Any]) -> tuple[int, int]:
    """(lost, twice) over all outs that hold episodes."""
    lost = sum(sum((counts - found.get(path, type(counts)())).values()) for path, counts in expected.items())
    return lost, sum(count - 1 for counts in found.values() for count in counts.values())


def figures(outcomes: list[Outcome], total: set[str], seconds: float) -> dict[str, Any]:
    overheads = [one.overhead_s for one in outcomes if one.overhead_s is not None]
    return {
        "kills": len(outcomes),
        "stages_total": len(total),
        "stages_killed": len({one.case.stage.partition("@")[0] for one in outcomes if one.case.when != "between"}),
        "runs_identical": sum(not one.differs for one in outcomes),
        "episodes_lost": sum(one.lost for one in outcomes),
        "episodes_twice": sum(one.twice for one in outcomes),
        "left_behind": sum(one.left_behind for one in outcomes),
        "resume_overhead_s": round(statistics.median(overheads), 2),
        "total_s": round(seconds, 1),
    }


@contextmanager
def api(folder: Path) -> Iterator[str]:
    """One Prefect server for all runs: to start one a run would measure Prefect."""
    environment = {**os.environ, "PREFECT_HOME": str(folder / "server"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
    port = free_port()
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port), "--log-level", "ERROR"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}/api/health", server)
        yield f"http://127.0.0.1:{port}/api"
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    import urllib.request

    deadline = time.monotonic() + 120
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("Prefect's server did not start")


def measure(folder: Path, quick: bool) -> tuple[dict[str, Any], list[Outcome]]:
    began = time.monotonic()
    with api(folder) as url, ThreadPoolExecutor(LANES) as threads:
        lanes = [Lane(folder / f"lane-{number}", url) for number in range(1 if quick else LANES)]
        list(threads.map(Lane.undisturbed, lanes))
        print(f"undisturbed: {time.monotonic() - began:.0f} s, {len(lanes[0].order)} stages", flush=True)
        if any(lane.expected["dvc.lock"] != lanes[0].expected["dvc.lock"] for lane in lanes):
            raise RuntimeError("two undisturbed runs are not the same: nothing can be compared")
        chosen = [Case(*one) for one in QUICK] if quick else cases(lanes[0].order)
        waiting = iter(sorted(chosen, key=lambda case: lanes[0].order.index(case.stage)))
        done: list[Outcome] = []

        def work(lane: Lane) -> None:
            for case in waiting:
                done.append(play(lane, case))
                print(done[-1].row(), flush=True)

        list(threads.map(work, lanes))
    total = {stage.partition("@")[0] for stage in lanes[0].order}
    return figures(done, total, time.monotonic() - began), done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write figures, machine and versions here")
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} kills, one at a time")
    given = parser.parse_args()
    before = common.machine()
    with tempfile.TemporaryDirectory() as name:
        found, outcomes = measure(Path(name), given.quick)
    print("\n".join(f"{key}: {value}" for key, value in found.items()))
    if given.json:
        command = f"python -m benchmarks.durability{' --quick' if given.quick else ''}"
        common.write(given.json, found, command, PACKAGES, before, each=[one.row() for one in outcomes])


if __name__ == "__main__":
    main()
