"""What benchmarks/durability.py does runs with: a checkout to run in, a run that is killed, and what is compared afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ratchet.files import remove

CHECKOUT = Path(__file__).parents[1]
COPIED = ("flows", "monitoring", "presets", "ratchet", "tasks", "dvc.yaml", "params.yaml", "params.schema.json", "waivers.yaml", ".dvcignore", ".gitignore")
MARK = "RATCHET_DURABILITY"  # in the environment of every process of a lane, so that one that is left behind is found
GONE_S = 10.0  # after a kill -9 of the run, everything that it started has to be gone by then
LONGEST_S = 600.0
CLOCKS = {"at", "created_at", "decided", "modified", "stages"}  # `stages` of a card is how fast they were
NOT_COMPARED = {"throughput", "alerts", "alembic_version"}  # a killed stage is an alert, and that is as it should be

PRESET = {
    "line": "durability",
    "env": {"name": "journaled:Journaled", "max_steps": 10, "max_tokens": 400},
    "prepare": {"games": {"train": 400, "seen": 8, "select": 24, "confirm": 48, "test": 48}, "vocab_size": 500},
    "demonstrate": {"episodes": 400},
    "actors": {"actor": {"layers": 2, "width": 48, "heads": 2, "kv_heads": 1, "mlp": 96, "tokens": 110000}},
    "warm_start": {"batch_tokens": 400},  # so many steps that there is a checkpoint on the way
    "rounds": 1,
    "check": {"max_invalid_share": 1.0, "max_truncated_share": 1.0},
    "harvest": {
        "episodes": 48,
        "shard": 8,
        "pool": [{"policy": "expert", "share": 0.25}, {"policy": "actor", "share": 0.5}, {"policy": "random", "share": 0.25}],
    },
    "label": {"replay_share": 0.5},
    "buffer": {"experts": 48, "own": {"tasks": 12, "samples": 2, "greedy": 1, "shard": 6}},
    "fit_meter": {"sft": {"epochs": 1, "examples": 64}, "rl": {"steps": 3}, "gate": {"enforce": False}},
    "fit_critic": {"enabled": True, "batch_tokens": 512},  # as the warm start's: checkpoints on the way
    "evolve_offline": {"enabled": True, "step_tokens": 512},
    "evolve_online": {"meter": {"enabled": True}, "iterations": 3, "tasks": 4, "samples": 4, "warmup": 1, "keep_every": 1, "shard": 8, "batch_tokens": 4096},
    "evaluate": {"shard": 4},
    "decide": {"resamples": 1000},
    "final": {"resamples": 1000},
    "report": {"episodes": 1},
}
JOURNALED = '''"""ALFWorld whose workers note every episode that they begin, and for which stage."""
import os
from dataclasses import dataclass
from pathlib import Path

from ratchet.envs.alfworld import benchmark
from ratchet.envs.alfworld.env import AlfworldEnv


class Noted(AlfworldEnv):
    def reset(self, task):
        stage, pid = "", os.getppid()
        while not stage and pid > 1:  # an environment's worker is a child of the stage, or of one of its players
            stage = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\\0", " ").partition("tasks.")[2].strip()
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        with open(os.environ["RATCHET_JOURNAL"], "a") as file:
            file.write(f"{stage}\\t{task.task_id}\\n")
        return super().reset(task)


def make(folder, splits, engine):
    return Noted(benchmark._read_all(folder, tuple(splits)), engine)


@dataclass(frozen=True)
class Journaled(benchmark.Alfworld):
    factory: str = "journaled:make"
'''


class Run:
    """One `ratchet run` process in a session of its own; its lines come with the time at which they came."""

    def __init__(self, lane: Lane, *arguments: str, fault: str = "") -> None:
        self.lane = lane
        self.began = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        environment = {**lane.environment, **({"RATCHET_FAULT": fault} if fault else {})}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "run", *arguments],
            cwd=lane.checkout,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def begun(self, stage: str) -> float | None:
        """When the stage began, None where it has not."""
        return next((at for at, line in list(self.lines) if line.startswith("[") and line.endswith(f"] {stage}")), None)

    def ended(self, stage: str) -> float | None:
        began = self.begun(stage)
        return None if began is None else next((at for at, line in list(self.lines) if at >= began and line.startswith("    took ")), None)

    def until(self, condition: Callable[[], bool]) -> bool:
        """Waits until the condition holds (True) or the process has ended (False)."""
        while not condition():
            if self.process.poll() is not None:
                return condition()
            if time.monotonic() - self.began > LONGEST_S:
                self.kill()
                raise TimeoutError(f"no end after {LONGEST_S:.0f} s; the last lines: {self.lines[-5:]}")
            time.sleep(0.004)
        return True

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self) -> int:
        self.until(lambda: self.process.poll() is not None)
        self.reader.join(timeout=5)
        return self.process.returncode

    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)


class Lane:
    """A checkout of its own at one place, with the finished undisturbed run in it; `restore` brings it back to before a stage."""

    def __init__(self, folder: Path, api: str) -> None:
        self.folder, self.checkout, self.snapshot = folder, folder / "checkout", folder / "snapshot"
        self.journal = folder / "journal"
        self.environment = {
            **os.environ,
            MARK: str(folder),
            "RATCHET_JOURNAL": str(self.journal),
            "PYTHONPATH": str(self.checkout),
            "PREFECT_API_URL": api,
            "PREFECT_HOME": str(folder / "prefect"),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        self._make_checkout()
        self.run_id, self.order, self.seconds = "", list[str](), dict[str, float]()
        self.resets: Counter[str] = Counter()

    @property
    def workspace(self) -> Path:
        return self.checkout / "runs" / self.run_id

    def _make_checkout(self) -> None:
        self.checkout.mkdir(parents=True)
        for name in COPIED:
            source = CHECKOUT / name
            if source.is_dir():
                shutil.copytree(source, self.checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.is_file():
                shutil.copy(source, self.checkout / name)
        (self.checkout / ".dvc").mkdir()
        for name in ("config", ".gitignore"):
            shutil.copy(CHECKOUT / ".dvc" / name, self.checkout / ".dvc" / name)
        (self.checkout / "journaled.py").write_text(JOURNALED)
        (self.checkout / "presets" / "durability.yaml").write_text(yaml.safe_dump(PRESET))
        identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@example.org"]
        for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "benchmark"]):
            subprocess.run(["git", *identity, *arguments], cwd=self.checkout, check=True)

    def undisturbed(self) -> None:
        """The run that all others are compared with; afterwards its whole checkout is kept."""
        run = Run(self, "--preset", "durability")
        if run.wait():
            raise RuntimeError(f"the undisturbed run failed:\n{run.text()}")
        self.run_id = next(path.name for path in (self.checkout / "runs").iterdir() if (path / "params.yaml").is_file())
        record = json.loads((self.workspace / "logs" / "run.json").read_text())
        self.order = record["order"]
        self.seconds = {one["name"]: one["seconds"] for one in record["stages"]}
        self.resets = self.journaled()
        self.expected = state_of(self)
        shutil.copytree(self.checkout, self.snapshot, symlinks=True)

    def journaled(self) -> Counter[str]:
        """How many episodes were begun, by stage."""
        lines = self.journal.read_text().splitlines() if self.journal.is_file() else []
        return Counter(line.partition("\t")[0] for line in lines)

    def restore(self, stage: str) -> None:
        """The workspace as it was before `stage`: outs and records of it and of all behind it are gone, and so is the registry. DVC may
        restore what lies behind the stage from its cache, and only from the very same inputs; the stage itself it has to run."""
        shutil.rmtree(self.checkout)
        shutil.copytree(self.snapshot, self.checkout, symlinks=True)
        self.journal.unlink(missing_ok=True)
        gone = self.order[self.order.index(stage) :]
        lock_path = self.workspace / "dvc.lock"
        lock = yaml.safe_load(lock_path.read_text())
        for name in gone:
            entry = lock["stages"].pop(name)
            for out in [one["path"] for one in entry["outs"]]:
                remove(self.workspace / out)
        lock_path.write_text(yaml.safe_dump(lock, sort_keys=False))
        for left in (self.workspace / "logs", self.workspace / ".ratchet" / "scratch", self.checkout / "registry", self.checkout / "models"):
            remove(left)
        for cached in (self.checkout / ".dvc" / "cache" / "runs").glob("*/*/*"):
            if yaml.safe_load(cached.read_text())["cmd"] == command_of(stage):
                remove(cached.parent)  # DVC fails on an empty one

    def scratch(self, stage: str) -> list[Path]:
        return list((self.workspace / ".ratchet" / "scratch" / stage).glob("*"))

    def left_behind(self) -> list[int]:
        """Processes of this lane that are still there, the run that was killed apart."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"{MARK}={self.folder}\0".encode() in path.read_bytes() and (path.parent / "cmdline").read_bytes():
                    found.append(int(path.parent.name))
            except OSError:  # it has just ended
                continue
        return found

    def wait_until_gone(self) -> bool:
        deadline = time.monotonic() + GONE_S
        while self.left_behind():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def command_of(stage: str) -> str:
    """As it stands in dvc.yaml."""
    name, _, key = stage.partition("@")
    which = "--actor" if name == "warm_start" else "--round"
    return f"python -m tasks.{name}{f' {which} {key}' if key else ''}"


def parts_of(lane: Lane, stage: str) -> int:
    """Episodes of the stage's whole parts; all of its episodes where its outs are whole."""
    import pyarrow.parquet as pq

    if any((scratch / "whole").is_dir() for scratch in lane.scratch(stage)):
        return lane.resets[command_of(stage).removeprefix("python -m tasks.")]
    markers = [marker for scratch in lane.scratch(stage) for marker in (scratch / "parts").glob("*.json")]
    return sum(pq.read_metadata(marker.with_name(f"{marker.stem}.episodes.parquet")).num_rows for marker in markers)


def state_of(lane: Lane) -> dict[str, Any]:
    """All that a run leaves and that holds no clock: its outs, what DVC recorded, the registry and its index."""
    outs = [path for folder in ("data", "models", "reports") for path in sorted((lane.workspace / folder).rglob("*")) if path.is_file()]
    registry = lane.checkout / "registry"
    return {
        "outs": {str(path.relative_to(lane.workspace)): hashlib.sha256(path.read_bytes()).hexdigest() for path in outs},
        "dvc.lock": yaml.safe_load((lane.workspace / "dvc.lock").read_text())["stages"],
        "cards": {path.name: without_clocks(json.loads(path.read_text())) for path in sorted(registry.glob("*.json"))},
        "index": index_rows(registry / "index.db"),
        "episodes": episode_ids(lane.workspace),
    }


def episode_ids(workspace: Path) -> dict[str, Counter[str]]:
    """How often each episode is in each of the outs that hold episodes."""
    import pyarrow.parquet as pq

    files = sorted((workspace / "data").rglob("episodes.parquet"))
    return {str(path.relative_to(workspace)): Counter(pq.read_table(path, columns=["episode_id"])["episode_id"].to_pylist()) for path in files}


def index_rows(path: Path) -> dict[str, list[str]]:
    """Rows of every table, sorted, without columns that hold times."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        database.row_factory = sqlite3.Row
        names = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        rows = {name: [dict(row) for row in database.execute(f'select * from "{name}"')] for name in names if name not in NOT_COMPARED}
    return {name: sorted(json.dumps(without_clocks(row), sort_keys=True) for row in table) for name, table in rows.items()}


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clocks(one) for key, one in value.items() if key not in CLOCKS}
    return [without_clocks(one) for one in value] if isinstance(value, list) else value
