"""What happened in a run and how long it took: logs/run.json of its workspace. Never an out: outs hold no clock."""

import time
from pathlib import Path
from typing import Any

from flows.stages import StageResult
from ratchet.files import read_json, write_json


class RunRecord:
    """Kept on disk after each change, so that a killed run is readable too. A resumed run appends to its record."""

    def __init__(self, workspace: Path, run_id: str, order: list[str]) -> None:
        self.path = workspace / "logs" / "run.json"
        before = read_json(self.path) if self.path.is_file() else {}
        self.began = _now()
        attempts = [*before.get("attempts", []), {"began": self.began}]
        self.value: dict[str, Any] = {"run_id": run_id, "order": order, "state": "running", "attempts": attempts, "stages": []}
        self._save()

    def stage(self, result: StageResult) -> None:
        self.value["stages"].append({"name": result.name, "state": result.state, "seconds": result.seconds})
        self._save()

    def end(self, state: str, reason: str | None = None) -> None:
        """`state` is finished, harvested (that far and no further was asked for), failed, stopped (seal) or interrupted."""
        self.value |= {"state": state, "reason": reason}
        self.value["attempts"][-1] |= {"ended": _now(), "state": state}
        self._save()

    def _save(self) -> None:
        write_json(self.path, self.value)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
