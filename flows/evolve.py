"""The flow that runs a workspace stage by stage. It skips nothing by itself: DVC decides what must run, stages decide what is off.

No `from __future__ import annotations` here: it breaks the parameters of served flows.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from flows.quiet import prepare_prefect

prepare_prefect()

from prefect import flow, get_client, task  # noqa: E402  (it reads its environment when imported)
from prefect.cache_policies import NO_CACHE  # noqa: E402
from prefect.logging import get_run_logger  # noqa: E402
from prefect.runtime import flow_run  # noqa: E402

from flows import alerting, approving, artifacts, events, mending, workspace  # noqa: E402
from flows.dag import stage_names  # noqa: E402
from flows.keys import keys_for  # noqa: E402
from flows.record import RunRecord  # noqa: E402
from flows.stages import StageFailed, StageLocked, StageResult, dismiss, log_path, run_stage  # noqa: E402
from flows.view import watching  # noqa: E402
from monitoring.alerts import read_receivers  # noqa: E402
from ratchet.errors import RatchetError  # noqa: E402
from ratchet.rendering import MAX_ROUNDS, render_run  # noqa: E402
from ratchet.store import outbox  # noqa: E402
from ratchet.store.database import IndexUnreachable  # noqa: E402

LOCK_RETRY_S = [1, 2, 4, 8]
ALERT_WAIT_S = 10.0
SEAL, REFUSED = "seal", "not sealed"  # the stage that may refuse, and how it says so


class RunFailed(RatchetError):
    """A stage failed; the text says which, where its log is and how to go on."""

    exit_code = 1


class RunStopped(RatchetError):
    """The seal refused: the run is complete, report included, and its data or its versions are not good."""

    exit_code = 1


def _is_locked(_task: Any, _run: Any, state: Any) -> bool:
    return isinstance(state.result(raise_on_failure=False), StageLocked)


@task(
    task_run_name="{name}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=len(LOCK_RETRY_S),
    retry_delay_seconds=LOCK_RETRY_S,
    retry_condition_fn=_is_locked,
)
def stage(folder: Path, name: str, more: bool = False) -> StageResult:
    """One DVC stage; `more` where another one follows. Retried where another DVC process holds a lock, and only then."""
    return run_stage(folder, name, watching.get().line, keys_for(folder, name), more=more)


def _run_name() -> str:
    """The run's id where it is known already, else what it is made from."""
    given = flow_run.parameters
    return str(given.get("resume") or given.get("name") or given.get("preset") or (workspace.HERE if given.get("here") else "defaults"))


@flow(name="evolve", flow_run_name=_run_name, persist_result=False)
def evolve(
    preset: str | None = None,
    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] | None = None,
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None,
    settings: list[str] | None = None,
    resume: str | None = None,
    name: str | None = None,
    here: bool = False,
    checkout: Path | None = None,
) -> str:
    """Trains, compares and keeps a version only when it is measurably better: one run, in a workspace of its own. Returns its id.

    Raises RunFailed, RunStopped, or RatchetError for input that cannot work.

    Args:
        preset: What to run, a file of presets/. Empty runs params.yaml as it is.
        rounds: How many rounds. Empty takes the preset's.
        seed: Seed of everything random. Empty takes the preset's.
        settings: Settings on top, each KEY=VALUE, such as evolve_online.lr=1e-4.
        resume: Id of a run to continue as it was set up. Leave all else empty.
        name: First part of the new run's id. Empty takes its line.
        here: Run what the checkout's params.yaml says in the checkout itself.
        checkout: By default the one around the current folder.
    """
    root = workspace.find_root((checkout or Path.cwd()).resolve())
    read_receivers(root)  # a mistake there is better known now than when the first event goes out
    fields = {"rounds": rounds, "seed": seed}
    on_top = [*(f"{key}={value}" for key, value in fields.items() if value is not None), *(settings or [])]
    run_id, folder = open_run(root, preset or None, on_top, resume or None, here, name or None)
    get_run_logger().info("run %s in %s", run_id, folder)
    with workspace.running(folder):
        workspace.refresh_waivers(root, folder)
        run_stages(root, folder, run_id)
    approving.remind(root, run_id, watching.get().note)
    return run_id


def open_run(root: Path, preset: str | None, settings: list[str], resume: str | None, here: bool, name: str | None) -> tuple[str, Path]:
    """(id, workspace) of a run that is new, resumed, or the checkout's own."""
    if resume is not None:
        if preset or settings or here or name:
            raise RatchetError(
                "--resume continues a run as it was set up; leave --preset, --set, --here and --name out, or start a new run"
            )
        return resume, _mended(root if resume == workspace.HERE else workspace.find(root, resume))
    if here:
        if preset or settings or name:
            raise RatchetError(
                "--here runs what params.yaml says; edit it instead of giving --preset, --set or --name, or leave --here out"
            )
        return workspace.HERE, _mended(workspace.open_here(root))
    params = render_run(root, preset, settings)
    run_id = workspace.new_id(name or params["line"])
    return run_id, workspace.create(root, run_id, params)


def _mended(folder: Path) -> Path:
    for line in mending.mend(folder):
        watching.get().note(line)
    return folder


def way_on(run_id: str) -> str:
    """The command that continues a run."""
    return "`ratchet run --here`" if run_id == workspace.HERE else f"`ratchet run --resume {run_id}`"


def start_api() -> None:
    """Makes sure that Prefect's API answers, starting the temporary one where no server is set. Raises RatchetError.

    The temporary server is a child in the terminal's foreground group. Were Ctrl-C to end it, Prefect would try for over a minute
    to report the interrupted run to it (measured: 79 s), so it is born deaf to the signal; it still obeys SIGTERM at our exit.
    """
    url = os.environ.get("PREFECT_API_URL")
    try:
        with _interrupts_held(), get_client(sync_client=True) as client:
            client.hello()
    except Exception as error:
        where = f"Prefect's API at {url} does not answer" if url else "Prefect's temporary API did not start"
        raise RatchetError(f"{where} ({type(error).__name__}); start or correct it, or unset PREFECT_API_URL") from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def run_stages(root: Path, folder: Path, run_id: str, last: str | None = None) -> None:
    """Runs the workspace's stages in their order, to the end or up to `last`, and keeps its record."""
    order = stage_names(folder)
    if last is not None and last not in order:
        raise RatchetError(f"{folder}: dvc.yaml has no stage {last}")
    record = RunRecord(folder, run_id, order)
    try:
        _stages(root, folder, run_id, order if last is None else order[: order.index(last) + 1], record)
    except RunStopped as error:
        record.end("stopped", str(error))
        raise
    except IndexUnreachable as error:
        record.end("failed", str(error))
        raise RunFailed(f"{error} and go on with {way_on(run_id)}") from error
    except RatchetError as error:
        record.end("failed", str(error))
        raise
    except BaseException as error:
        record.end("interrupted", type(error).__name__)
        raise
    finally:
        dismiss()
    record.end("finished" if last is None else "harvested")


def _stages(root: Path, folder: Path, run_id: str, order: list[str], record: RunRecord) -> None:
    view, logger = watching.get(), get_run_logger()
    progress = artifacts.begin_progress(run_id)
    for place, name in enumerate(order, start=1):
        view.stage_begins(name, place, len(order))
        logger.info("%s begins", name)
        try:
            result = stage(folder, name, more=place < len(order))
        except StageFailed as error:
            _failed(root, folder, run_id, name, record.began, error)
        record.stage(result)
        view.stage_ends(result)
        logger.info("%s: %s in %.1f s", name, result.state, result.seconds)
        artifacts.after_stage(folder, name)
        artifacts.move_progress(progress, place, len(order))
        _share_or_note(root, folder, run_id)
    _share(root, folder, run_id, ALERT_WAIT_S)


def _failed(root: Path, folder: Path, run_id: str, name: str, attempt: str, error: StageFailed) -> None:
    """Raises what a failed stage means for the run, after its event is in the outbox."""
    if name == SEAL and REFUSED in str(error):
        _share(root, folder, run_id, ALERT_WAIT_S)
        raise RunStopped(f"{str(error).removeprefix(f'{SEAL}: ')}; then go on with {way_on(run_id)}") from error
    outbox.put(root, outbox.stage_failed(run_id, name, str(error), attempt))
    _tell(root, ALERT_WAIT_S)
    raise RunFailed(f"{error}; log: {log_path(folder, name)}; go on with {way_on(run_id)}") from error


def _share_or_note(root: Path, folder: Path, run_id: str) -> None:
    """A busy index must not end hours of training: everything is taken up again after the next stage, and at the end for good.

    A database server that stays away ends the run: what is trained after that would be seen by nobody. It resumes from here.
    """
    try:
        _share(root, folder, run_id)
    except IndexUnreachable:
        raise
    except RatchetError as error:
        watching.get().note(f"not shared yet: {error}")
        get_run_logger().warning("not shared yet: %s", error)


def _share(root: Path, folder: Path, run_id: str, wait_s: float = 0.0) -> None:
    """What is new goes into registry, index and outbox of the checkout; then the outbox is delivered."""
    from ratchet.store import sync

    sync.sync(root, folder, run_id)
    _tell(root, wait_s)


def _tell(root: Path, wait_s: float) -> None:
    """Events out of the outbox, and alerts on to their receivers; for those under way it is waited up to `wait_s` where the run ends."""
    events.deliver(root)
    try:
        alerting.follow(root, wait_s)
    except RatchetError as error:  # they are kept, and followed by whatever runs next
        get_run_logger().warning("alerts: %s", error)
