"""`ratchet serve`: Prefect's server, the deployments of prefect.yaml, a worker and the page, for one checkout on this machine.

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
from flows.registering import EVOLVE, named, nightly, on_regression, read_deployments, register
from monitoring.alerts import read_receivers
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json

HOST = "127.0.0.1"
START_S = 300.0  # Prefect's server takes 13 to 17 s on a cold disk, and minutes where everything is busy
POLL_S = 2  # how often the worker asks for scheduled runs; Prefect's 10 s are long to look at
SLOT_S = 5  # how often a run that waits for another one asks again; Prefect's 30 s are long to look at, too
STOP_S = 20.0  # for runs to end before they are killed, and for their worker


def serve(root: Path, port: int, cron: str | None, preset: str | None, settings: list[str], once: bool = False) -> None:
    """Registers the deployments and works for them until Ctrl-C or SIGTERM.

    `cron`, with `preset` and `settings`, makes a schedule of `evolve`. Where PREFECT_API_URL names a server, that one is used,
    else the one that listens on `port`, else one is started there. `once` only registers. Raises RatchetError for input that
    cannot work, a second `ratchet serve` of this checkout, and for a server or worker that ends by itself.
    """
    prepare_prefect()
    schedule = nightly(root, cron, preset, settings)
    deployments, starts = read_deployments(root), on_regression(root)
    read_receivers(root)
    with ExitStack() as stack:
        stack.enter_context(_only_one(root))
        from flows import approving, caretaking

        for number in (signal.SIGTERM, signal.SIGINT):  # a shell starts background commands with SIGINT ignored
            signal.signal(number, _interrupt)
        try:
            url = stack.enter_context(_api(root, port))
            _write_state(root, {"pid": os.getpid(), "api": url})
            names = register(root, url, deployments, schedule)
            print(f"deployments: {', '.join(names)}", flush=True)
            told, notes = caretaking.register_alerts(root, url, named(deployments, names, EVOLVE), starts)
            print("\n".join([f"alerts go to {', '.join(told)}", *notes] if told else notes or ["alerts go to nobody (docs/operations.md)"]), flush=True)
            if once:
                return
            base = stack.enter_context(_page(root, port + 1))
            _write_state(root, {"pid": os.getpid(), "api": url, "reports": base})
            stack.enter_context(caretaking.caring(root, url, named(deployments, names, approving.ENTRYPOINT)))
            pools = sorted({one["work_pool"]["name"] for one in deployments})
            workers = [stack.enter_context(_worker(root, url, pool, base)) for pool in pools]
            print(f"page: {base}", flush=True)
            print(f"open {url.removesuffix('/api')} · Ctrl-C ends it, and what runs", flush=True)
            while all(worker.poll() is None for worker in workers):
                time.sleep(0.5)
            raise RatchetError(f"the worker ended by itself; see {_log(root, 'worker')}")
        except KeyboardInterrupt:
            print("stopping", flush=True)


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
    own |= {"PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": str(SLOT_S)}
    own |= {"PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "1"}  # so soon is known whether an alert was taken; Prefect's is 5 s
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
def _page(root: Path, port: int) -> Iterator[str]:
    from flows.ui import serving

    try:
        with serving(root, port if _is_free(port) else 0) as base:
            yield base
    except OSError as error:
        raise RatchetError(f"the page cannot be served at {HOST}:{port} ({error.strerror}); choose another port with --port") from None


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
