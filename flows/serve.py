"""`ratchet serve`: Prefect's server, the deployments of prefect.yaml, a worker and the reports, for one checkout on this machine.

What runs here (server, worker) are children in sessions of their own: Ctrl-C reaches only this process, which ends them in order.
Each dies with it, too, should it be killed (flows/child.py).
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flows import child, reports
from flows.quiet import PREFECT, prepare_prefect
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.rendering import render_run
from ratchet.yaml_files import read_yaml

HOST = "127.0.0.1"
START_S = 300.0  # Prefect's server takes 13 to 17 s on a cold disk, and minutes where everything is busy
POLL_S = 2  # how often the worker asks for scheduled runs; Prefect's 10 s are long to look at
CRON_SLUG = "ratchet-serve"  # the schedule that --cron makes; all others are the user's
STOP_S = 20.0  # for runs to end before they are killed, and for their worker


def serve(root: Path, port: int, cron: str | None, preset: str | None, settings: list[str], once: bool = False) -> None:
    """Registers the deployments and works for them until Ctrl-C or SIGTERM.

    `cron`, with `preset` and `settings`, makes a schedule of `evolve`. Where PREFECT_API_URL names a server, that one is used,
    else the one that listens on `port`, else one is started there. `once` only registers. Raises RatchetError for input that
    cannot work, a second `ratchet serve` of this checkout, and for a server or worker that ends by itself.
    """
    prepare_prefect()
    schedule = _schedule(root, cron, preset, settings)
    deployments = read_deployments(root)
    with ExitStack() as stack:
        stack.enter_context(_only_one(root))
        for number in (signal.SIGTERM, signal.SIGINT):  # a shell starts background commands with SIGINT ignored
            signal.signal(number, _interrupt)
        try:
            url = stack.enter_context(_api(root, port))
            _write_state(root, {"pid": os.getpid(), "api": url})
            names = register(root, url, deployments, schedule)
            print(f"deployments: {', '.join(names)}", flush=True)
            if once:
                return
            base = stack.enter_context(_reports(root, port + 1))
            pools = sorted({one["work_pool"]["name"] for one in deployments})
            workers = [stack.enter_context(_worker(root, url, pool, base)) for pool in pools]
            print(f"open {url.removesuffix('/api')} · Ctrl-C ends it, and what runs", flush=True)
            while all(worker.poll() is None for worker in workers):
                time.sleep(0.5)
            raise RatchetError(f"the worker ended by itself; see {_log(root, 'worker')}")
        except KeyboardInterrupt:
            print("stopping", flush=True)


def read_deployments(root: Path) -> list[dict[str, Any]]:
    """The entries of prefect.yaml. Raises RatchetError where the file or something in it is missing."""
    path = root / "prefect.yaml"
    if not path.is_file():
        raise RatchetError(f"{path}: is not there; `ratchet init` puts one into a new project, copy it from there")
    value = read_yaml(path)
    entries = value.get("deployments") if isinstance(value, dict) else None
    if not isinstance(entries, list) or not entries:
        raise RatchetError(f"{path}: holds no list of deployments")
    for place, entry in enumerate(entries):
        for key in ("name", "entrypoint", "work_pool"):
            if not isinstance(entry, dict) or not entry.get(key):
                raise RatchetError(f"{path}: deployments.{place}.{key} is missing")
        if not isinstance(entry["work_pool"], dict) or not entry["work_pool"].get("name"):
            raise RatchetError(f"{path}: deployments.{place}.work_pool: write {{name: NAME}}")
    return entries


def register(root: Path, url: str, deployments: list[dict[str, Any]], schedule: dict[str, Any] | None) -> list[str]:
    """Creates or renews the deployments at Prefect's API; schedules that were made in the UI stay. Returns `FLOW/NAME` of each.

    Raises RatchetError for a deployment of the same name that belongs to another folder.
    """
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, PrefectHTTPStatusError
    from prefect.settings import PREFECT_API_URL, temporary_settings

    names = []
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        try:
            for pool in sorted({entry["work_pool"]["name"] for entry in deployments}):
                with suppress(ObjectAlreadyExists):
                    client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=_job_template()))
            for entry in deployments:
                names.append(_register(root, client, entry, schedule if entry["entrypoint"] == "flows.evolve.evolve" else None))
        except PrefectHTTPStatusError as error:
            said = " ".join(error.response.text.split())[:300]
            raise RatchetError(f"Prefect's API at {url} refused a deployment of prefect.yaml: {said}") from None
    return names


def _register(root: Path, client: Any, entry: dict[str, Any], schedule: dict[str, Any] | None) -> str:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyOptions
    from prefect.exceptions import ObjectNotFound, ScriptError
    from prefect.flows import load_flow_from_entrypoint

    try:
        flow = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
    except (ImportError, ScriptError, AttributeError, ValueError) as error:
        raise RatchetError(f"prefect.yaml: {entry['name']}: no flow {entry['entrypoint']} ({error}); write MODULE.FLOW") from None
    name = f"{flow.name}/{entry['name']}"
    try:
        there = client.read_deployment_by_name(name)
    except ObjectNotFound:
        there = None
    pull = [{"prefect.deployments.steps.set_working_directory": {"directory": str(root)}}]
    if there is not None and there.pull_steps and there.pull_steps != pull:
        where = next(iter(there.pull_steps[0].values())).get("directory")
        raise RatchetError(
            f"deployment {name}: belongs to {where} at this server; rename the deployments in prefect.yaml, or delete that one in the UI"
        )
    limit = entry.get("concurrency_limit") or {}
    limit = {"limit": limit} if isinstance(limit, int) else limit
    client.create_deployment(
        flow_id=client.create_flow(flow),
        name=entry["name"],
        description=entry.get("description"),
        tags=entry.get("tags") or [],
        parameters=entry.get("parameters") or {},
        entrypoint=entry["entrypoint"],
        pull_steps=pull,
        work_pool_name=entry["work_pool"]["name"],
        schedules=[DeploymentScheduleCreate(**one) for one in _schedules(entry, there, schedule)],
        concurrency_limit=limit.get("limit"),
        concurrency_options=ConcurrencyOptions(collision_strategy=limit.get("collision_strategy", "ENQUEUE")) if limit else None,
        parameter_openapi_schema=form(root, flow),
        enforce_parameter_schema=True,
    )
    return name


def _schedules(entry: dict[str, Any], there: Any, added: dict[str, Any] | None) -> list[dict[str, Any]]:
    """All of a deployment's schedules: registering replaces them, and those made in the UI must stay as they are."""
    named: dict[str, dict[str, Any]] = {}
    for place, one in enumerate(entry.get("schedules") or []):
        slug = one.get("slug") or f"prefect-yaml-{place}"
        named[slug] = _cron(one.get("cron"), f"prefect.yaml: schedules.{place}", one.get("timezone")) | {
            "slug": slug,
            "parameters": one.get("parameters") or {},
            "active": one.get("active", True),
        }
    if added is not None:
        named[CRON_SLUG] = added
    kept = []
    for one in there.schedules if there is not None else []:
        if one.slug in named:
            named[one.slug]["active"] = one.active  # paused in the UI stays paused
        elif not (one.slug or "").startswith("prefect-yaml-"):
            kept.append({"schedule": one.schedule, "active": one.active, "parameters": one.parameters or {}, "slug": one.slug})
    return [*kept, *named.values()]


def _schedule(root: Path, cron: str | None, preset: str | None, settings: list[str]) -> dict[str, Any] | None:
    """The schedule of `--cron`. What it would run is rendered now, so that it does not fail at night."""
    if cron is None:
        if preset or settings:
            raise RatchetError("--preset and --set say what a schedule runs; give --cron with them, or choose them in the form")
        return None
    render_run(root, preset, settings)
    parameters = {"preset": preset, "settings": settings or None}
    given = {key: value for key, value in parameters.items() if value is not None}
    return _cron(cron, "--cron") | {"slug": CRON_SLUG, "parameters": given, "active": True}


def _cron(text: Any, where: str, timezone: str | None = None) -> dict[str, Any]:
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        return {"schedule": CronSchedule(cron=text, timezone=timezone)}
    except ValidationError:
        raise RatchetError(f"{where}: {text!r} is no cron line; write minute, hour, day, month and weekday, such as '0 2 * * *'") from None


def form(root: Path, flow: Any) -> dict[str, Any]:
    """JSON Schema of a flow's parameters as the UI's form shows them: presets are choices; where a run lives is not asked."""
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(flow).model_dump_for_openapi()
    schema["properties"] = {name: _optional(one) for name, one in schema["properties"].items() if name not in ("here", "checkout")}
    if "preset" in schema["properties"]:
        schema["properties"]["preset"]["enum"] = sorted(path.stem for path in (root / "presets").glob("*.yaml"))
    return schema


def _optional(field: dict[str, Any]) -> dict[str, Any]:
    """A field that may be left empty, as the field that it is when it is not: the UI shows `X or null` as a choice between the two."""
    kinds = [one for one in field.get("anyOf", []) if one.get("type") != "null"]
    if len(kinds) != 1:
        return field
    return {**{key: value for key, value in field.items() if key not in ("anyOf", "default")}, **kinds[0]}


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    path = root / ".ratchet" / "serve.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        state = read_json(_state(root)) if _state(root).is_file() else {}
        at = f" (pid {state['pid']}, {state['api'].removesuffix('/api')})" if state else ""
        raise RatchetError(f"{root}: `ratchet serve` is at work here already{at}; use that one, or end it with Ctrl-C") from None
    try:
        yield
    finally:
        _state(root).unlink(missing_ok=True)
        lock.release()


@contextmanager
def _api(root: Path, port: int) -> Iterator[str]:
    """URL of Prefect's API: the one that is set, the one that listens on `port`, or one that is started there."""
    if given := os.environ.get("PREFECT_API_URL"):
        if not _answers(given):
            raise RatchetError(f"Prefect's API at {given} does not answer; start or correct it, or unset PREFECT_API_URL")
        yield given
        return
    url = f"http://{HOST}:{port}/api"
    if _answers(url):
        print(f"joins the Prefect server at {HOST}:{port}", flush=True)
        yield url
        return
    if not _is_free(port):
        raise RatchetError(f"port {port} is taken by something else; choose another with --port")
    # `prefect server start --port` would leave the UI blank: it reads the setting
    own = {"PREFECT_SERVER_API_HOST": HOST, "PREFECT_SERVER_API_PORT": str(port), "PREFECT_UI_API_URL": url}
    with _running(root, "server", ["server", "start"], own) as server:
        print("starts a Prefect server", flush=True)
        end = time.monotonic() + START_S
        while not _answers(url):
            if server.poll() is not None or time.monotonic() > end:
                raise RatchetError(f"Prefect's server did not start; see {_log(root, 'server')}")
            time.sleep(0.5)
        yield url


@contextmanager
def _worker(root: Path, url: str, pool: str, base: str | None) -> Iterator["subprocess.Popen[str]"]:
    own = {"PREFECT_API_URL": url, "PREFECT_WORKER_QUERY_SECONDS": str(POLL_S), "PREFECT_RUNNER_POLL_FREQUENCY": str(POLL_S)}
    own |= {reports.URL_VARIABLE: base} if base else {}
    name = f"{socket.gethostname()}-{os.getpid()}"
    with _running(root, "worker", ["worker", "start", "--pool", pool, "--type", "process", "--name", name], own) as process:
        yield process


@contextmanager
def _reports(root: Path, port: int) -> Iterator[str]:
    try:
        serving = reports.serving(root, port if _is_free(port) else 0)
        with serving as base:
            yield base
    except OSError as error:
        raise RatchetError(f"reports cannot be served at {HOST}:{port} ({error.strerror}); choose another port with --port") from None


@contextmanager
def _running(root: Path, name: str, arguments: list[str], own: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A `prefect` command as a child that logs into .ratchet/serve/NAME.log and ends with the block."""
    log = _log(root, name)
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, **PREFECT, "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO", **own}
    with log.open("a", encoding="utf-8") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", child.__file__, "--prefect", *arguments],
            cwd=root, env=env, stdin=subprocess.PIPE, stdout=out, stderr=out, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """Ends a child: its flow runs first, each of which ends its stage and says so to the server. What is left is killed."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        child_itself = psutil.Process(process.pid)
        tree = child_itself.children(recursive=True)
        # a worker's flow runs are sessions of their own, and would outlive it
        _wait([one for one in tree if _is_flow_run(one)])
        for one in _wait([child_itself]) + psutil.wait_procs(tree, timeout=0)[1]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait(timeout=STOP_S)


def _wait(processes: list[Any]) -> list[Any]:
    """SIGTERM to all; those that are still there after STOP_S."""
    import psutil

    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.terminate()
    return psutil.wait_procs(processes, timeout=STOP_S)[1]


def _is_flow_run(process: Any) -> bool:
    import psutil

    try:
        return "prefect.engine" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _job_template() -> dict[str, Any]:
    from prefect.workers.process import ProcessWorker

    return ProcessWorker.get_default_base_job_template()


def _answers(url: str) -> bool:
    try:  # cheaper than httpx, whose every client reads all certificates: this is asked often while the server starts
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.read().strip() == b"true"
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def _state(root: Path) -> Path:
    return root / ".ratchet" / "serve" / "serve.json"


def _log(root: Path, name: str) -> Path:
    return root / ".ratchet" / "serve" / f"{name}.log"


def _write_state(root: Path, state: dict[str, Any]) -> None:
    write_json(_state(root), state)


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt
