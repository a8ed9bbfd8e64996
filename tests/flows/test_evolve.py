"""The flow through the real Prefect API and real DVC, on trivial stages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows import workspace
from flows.evolve import RunFailed, RunStopped, evolve
from flows.stages import StageLocked, StageResult
from flows.view import View, watching
from ratchet.errors import RatchetError
from ratchet.store import outbox
from ratchet.yaml_files import read_yaml
from tests.flows.conftest import PREPARE, FakeSync, make_checkout

ORDER = ["prepare", "evaluate@0", "evaluate@1", "decide@1", "report", "seal"]
SHORT = PREPARE + """\
  seal:
    cmd: python stage.py seal reports/seal.json
    deps: [stage.py, data/prepare, waivers.yaml]
    outs: [reports/seal.json]
"""
CHECKED = SHORT + """\
  check:
    foreach: ${rounds}
    do:
      cmd: python stage.py check-${key} data/rounds/${key}/check
      deps: [stage.py, data/prepare]
      outs: ["data/rounds/${key}/check"]
"""
ONE_ROUND = ["rounds=1"]
CLI = [sys.executable, "-m", "flows.cli"]


class Recorder(View):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.results: list[StageResult] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(f"note: {text}")

    def stage_ends(self, result: StageResult) -> None:
        self.results.append(result)


@pytest.fixture
def view() -> Iterator[Recorder]:
    recorder = Recorder()
    token = watching.set(recorder)
    yield recorder
    watching.reset(token)


def record(folder: Path) -> dict[str, Any]:
    value = json.loads((folder / "logs" / "run.json").read_text())
    assert isinstance(value, dict)
    return value


def artifact(key: str) -> Any:
    from prefect import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
    from prefect.client.schemas.sorting import ArtifactSort

    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
        found = client.read_artifacts(artifact_filter=wanted, sort=ArtifactSort.CREATED_DESC, limit=1)
    return found[0].data if found else None


def test_a_run_goes_through_all_stages_and_one_that_failed_goes_on_where_it_was(
    checkout: Path, prefect_api: dict[str, str], store: FakeSync, view: Recorder
) -> None:
    """A stage fails with one line; resumed, what was done is unchanged, the seal refuses, and all of it is shown."""
    (checkout / "break-decide").write_text("no decision possible")
    with pytest.raises(RunFailed) as caught:
        evolve(settings=ONE_ROUND, checkout=checkout, name="first")
    (run,) = workspace.list_runs(checkout)
    folder, said = run.workspace, str(caught.value)
    assert run.run_id.startswith("first-") and said.startswith("decide@1: error: no decision possible; log: ")
    assert str(folder / "logs" / "decide@1.log") in said and f"`ratchet run --resume {run.run_id}`" in said
    assert "\n" not in said
    assert (run.state, run.stages_done, run.stages) == ("failed", 3, 6)
    assert outbox.pending(checkout) == []
    assert [(event.kind, event.data["stage"]) for event in outbox.delivered(checkout)] == [("stage.failed", "decide@1")]
    assert [result.name for result in view.results] == ORDER[:3] and {result.state for result in view.results} == {"ran"}
    assert "prepare says hello" in view.lines
    assert not [line for line in view.lines if "git add" in line or "dvc" in line.lower()]  # DVC's hints are in the log only
    assert "Running stage 'prepare'" in (folder / "logs" / "prepare.log").read_text()

    (folder / "break-decide").unlink()
    (checkout / "waivers.yaml").write_text("waivers: [bad]\n")  # a run sees the checkout's waivers of the moment
    view.results.clear()
    store.synced.clear()
    with pytest.raises(RunStopped, match="^seal: not sealed, failed checks: invalid_share; .* then go on with") as stopped:
        evolve(resume=run.run_id, checkout=checkout)
    assert [(result.name, result.state) for result in view.results] == list(zip(ORDER, ["unchanged"] * 3 + ["ran"] * 2, strict=False))
    assert [call.replace("-", "@") for call in (folder / ".calls").read_text().split()] == [*ORDER[:4], *ORDER[3:]]
    assert store.synced == [run.run_id] * len(ORDER)
    assert stopped.value.exit_code == 1
    assert len(outbox.delivered(checkout)) == 1  # the verdict is no failure of a stage
    done = record(folder)
    assert done["state"] == "stopped" and done["order"] == ORDER and len(done["attempts"]) == 2
    rows = artifact("evaluation-1")
    rows = json.loads(rows) if isinstance(rows, str) else rows
    assert [row["panel"] for row in rows] == ["select", "confirm"]
    assert "model.kept" in artifact("decision-1")
    speeds = artifact("throughput")
    speeds = json.loads(speeds) if isinstance(speeds, str) else speeds
    assert [(row["stage"], row["decoding %"]) for row in speeds] == [("evaluate@0", 50.0), ("evaluate@1", 50.0)]
    assert (folder / "reports" / "report.html").resolve().as_uri() in artifact("report")
    assert artifact("progress") == 83.3


def test_a_stage_is_retried_only_when_dvc_is_locked(prefect_api: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from flows import evolve as module
    from flows.stages import StageFailed

    calls: list[str] = []

    def run_stage(folder: Path, name: str, on_line: object, keys: object, more: bool) -> StageResult:
        calls.append(name)
        if name == "broken":
            raise StageFailed("broken")
        if len(calls) < 3:
            raise StageLocked("locked")
        return StageResult(name, "ran", 0.0)

    monkeypatch.setattr(module, "run_stage", run_stage)
    quick = module.stage.with_options(retry_delay_seconds=0.01)
    assert quick(tmp_path, "locked").state == "ran"
    assert calls == ["locked"] * 3
    with pytest.raises(StageFailed, match="broken"):
        quick(tmp_path, "broken")
    assert calls == ["locked"] * 3 + ["broken"]


def test_dvcs_lock_errors_are_recognised(checkout: Path) -> None:
    """A lock file that this process holds, as another DVC would."""
    import zc.lockfile

    from flows.stages import run_stage

    (checkout / ".dvc" / "tmp").mkdir(exist_ok=True)
    held = zc.lockfile.LockFile(str(checkout / ".dvc" / "tmp" / "rwlock.lock"))
    try:
        with pytest.raises(StageLocked, match="prepare: "):
            run_stage(checkout, "prepare", lambda line: None)
    finally:
        held.close()


def test_input_that_cannot_work_is_refused_before_anything_is_made(checkout: Path, prefect_api: dict[str, str], store: FakeSync) -> None:
    for arguments, said in (
        ({"settings": ["rounds=x"]}, "rounds: 'x' is refused"),
        ({"preset": "nothing"}, "no such preset"),
        ({"resume": "nothing"}, "no such run"),
        ({"resume": "a", "settings": ["seed=2"]}, "continues a run as it was set up"),
        ({"here": True, "settings": ["seed=2"]}, "--here runs what params.yaml says"),
        ({"name": "a/b"}, "not a usable name"),
    ):
        with pytest.raises(RatchetError, match=said):
            evolve(checkout=checkout, **arguments)  # type: ignore[arg-type]
    assert workspace.list_runs(checkout) == []
    with workspace.running(checkout), pytest.raises(RatchetError, match="another run is at work there"):
        evolve(here=True, checkout=checkout)


def test_trouble_with_sharing_does_not_end_the_run_before_its_end(
    tmp_path: Path, prefect_api: dict[str, str], store: FakeSync, view: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = make_checkout(tmp_path / "checkout", stages=SHORT)

    def locked(*_: object) -> None:
        raise RatchetError("database is locked")

    monkeypatch.setattr(store, "sync", locked)
    with pytest.raises(RatchetError, match="^database is locked"):
        evolve(settings=ONE_ROUND, checkout=checkout)
    assert [result.name for result in view.results] == ["prepare", "seal"]
    assert view.lines.count("note: not shared yet: database is locked") == 2


def test_a_harvest_ends_with_its_checks_and_evolve_goes_on_from_there(
    tmp_path: Path, prefect_api: dict[str, str], store: FakeSync, view: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.harvesting import harvest

    stages = CHECKED.replace("deps: [stage.py, data/prepare, waivers.yaml]", "deps: [stage.py, data/rounds/1/check, waivers.yaml]")
    checkout = make_checkout(tmp_path / "checkout", stages=stages)
    monkeypatch.chdir(checkout)
    run_id = harvest(episodes=7, settings=ONE_ROUND)
    folder = workspace.find(checkout, run_id)
    assert [result.name for result in view.results] == ["prepare", "check@1"] and record(folder)["state"] == "harvested"
    assert read_yaml(folder / "params.yaml")["harvest"]["episodes"] == 7
    view.results.clear()
    evolve(resume=run_id, checkout=checkout)
    assert [(result.name, result.state) for result in view.results] == [("prepare", "unchanged"), ("check@1", "unchanged"), ("seal", "ran")]
    assert record(folder)["state"] == "finished"


def test_an_event_is_marked_only_after_the_api_took_it_and_sent_once(prefect_api: dict[str, str], tmp_path: Path) -> None:
    from flows import events

    event = outbox.Event("model.promoted", "r1", 2, "quickstart", "abc", "promoted", {"gain": 0.25})
    assert outbox.put(tmp_path, event)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "_post", refuse)
        with pytest.raises(RatchetError, match="it stays in the outbox"):
            events.deliver(tmp_path)
    assert [one.id for one in outbox.pending(tmp_path)] == [event.id]
    assert events.deliver(tmp_path) == 1
    assert events.deliver(tmp_path) == 0
    found = wait_for_event(event)
    assert found["event"] == "ratchet.model.promoted"
    assert found["resource"]["prefect.resource.id"] == "ratchet.run.r1"
    assert found["payload"]["data"] == {"gain": 0.25} and found["payload"]["round"] == 2

    # killed between taking and marking: the outbox has it again, and Prefect does not get it twice
    (tmp_path / ".ratchet" / "outbox" / "delivered" / f"{event.id}.json").rename(tmp_path / ".ratchet" / "outbox" / f"{event.id}.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "_post", refuse)
        assert events.deliver(tmp_path) == 1
    assert outbox.pending(tmp_path) == []


def refuse(*_: object) -> None:
    raise httpx.ConnectError("refused")


def wait_for_event(event: outbox.Event) -> dict[str, Any]:
    from prefect import get_client

    from flows.events import prefect_id

    deadline = time.monotonic() + 30
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            answer = client.request("POST", "/events/filter", json={"filter": {"id": {"id": [str(prefect_id(event))]}}})
            if found := answer.json()["events"]:
                return dict(found[0])
            time.sleep(0.3)
    raise AssertionError("Prefect does not have the event")


def start_cli(checkout: Path, api: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_API")}
    return subprocess.Popen(
        [*CLI, *arguments],
        cwd=checkout,
        env={**env, **api, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 180) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if path.is_file() and (text := path.read_text()):
            return text
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear: {process.communicate(timeout=10) if process.poll() is not None else 'too slow'}")


def is_alive(pid: str) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.is_file() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def hanging_run(checkout: Path, api: dict[str, str]) -> tuple[subprocess.Popen[str], list[str]]:
    """A run in the checkout that hangs in `prepare`, and the processes of that stage."""
    (checkout / "hang-prepare").write_text("")
    process = start_cli(checkout, api, "run", "--here")
    return process, wait_for(checkout / "hanging", process).split()


@pytest.mark.parametrize("own_api", [True, False], ids=["temporary API", "server"])
def test_ctrl_c_ends_the_stage_within_five_seconds_and_says_how_to_resume(
    checkout: Path, prefect_api: dict[str, str], own_api: bool
) -> None:
    """Ctrl-C in a terminal reaches the whole foreground group, so also Prefect's temporary API where that is a child."""
    database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": prefect_api["PREFECT_SERVER_DATABASE_CONNECTION_URL"]}
    process, workers = hanging_run(checkout, database if own_api else prefect_api)
    began = time.monotonic()
    if own_api:
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGINT)  # the stage must end by our doing, not by the terminal's
    while any(is_alive(pid) for pid in workers):
        assert time.monotonic() - began < 5
        time.sleep(0.05)
    _, errors = process.communicate(timeout=60)  # the run's end is still told to Prefect
    assert process.returncode == 130
    assert errors.strip() == "interrupted; go on with `ratchet run --here`"
    assert record(checkout)["state"] == "interrupted"


def test_a_killed_run_takes_its_stage_along_and_frees_the_workspace(checkout: Path, prefect_api: dict[str, str]) -> None:
    process, workers = hanging_run(checkout, prefect_api)
    with pytest.raises(RatchetError, match="another run is at work there"):
        evolve(here=True, checkout=checkout)
    process.kill()
    process.communicate(timeout=10)
    deadline = time.monotonic() + 5
    while any(is_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(is_alive(pid) for pid in workers)
    with workspace.running(checkout):
        pass


def test_two_runs_at_once_simply_work(tmp_path: Path, prefect_api: dict[str, str]) -> None:
    checkout = make_checkout(tmp_path / "checkout", stages=SHORT)
    both = [start_cli(checkout, prefect_api, "run", "--set", "rounds=1", "--set", f"seed={seed}") for seed in (1, 2)]
    for process in both:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, output + errors
    assert [(run.state, run.stages_done) for run in workspace.list_runs(checkout)] == [("finished", 2)] * 2
    assert artifact("progress") == 100.0
