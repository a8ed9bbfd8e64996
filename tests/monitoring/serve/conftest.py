"""One `ratchet serve` with a Prefect server of its own, on a checkout whose stages are quick and whose outs are real."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ratchet.files import write_bytes
from tests.flows.conftest import CHECKOUT, PREPARE, make_checkout
from tests.store import fabricate

T = TypeVar("T")
PATIENCE_S = 240.0  # a Prefect server takes 15 s to start and a flow run 5, but all cores may be busy
STAGES = PREPARE + """\
  evaluate:
    foreach: ${{rounds}}
    do:
      cmd: mkdir -p data/rounds/${{key}} models/rounds/${{key}} && cp -r {made}/data/rounds/${{key}}/evaluation data/rounds/${{key}} && cp -r {made}/models/rounds/${{key}}/version models/rounds/${{key}}
      deps: [data/prepare]
      outs: ["data/rounds/${{key}}/evaluation", "models/rounds/${{key}}/version"]
  decide:
    foreach: ${{rounds}}
    do:
      cmd: cp -r {made}/data/rounds/${{key}}/decision data/rounds/${{key}}
      deps: ["data/rounds/${{key}}/evaluation"]
      outs: ["data/rounds/${{key}}/decision"]
  report:
    cmd: mkdir -p reports && cp {made}/report.html reports
    deps: [data/rounds]
    outs: [reports/report.html]
"""
NAMES = ("evolve", "harvest", "evaluate", "compare", "monitor", "approve")  # of the deployments
HOOK, MAIL = "TEST_ALERT_URL", "TEST_MAIL_URL"
# the last two are never told of anything: they would ask the network
ADDRESSES = {
    HOOK: "http://127.0.0.1:{hook}/secret",
    MAIL: "mailto://127.0.0.1:{mail}?from=ratchet@example.org&to=you@example.org&mode=insecure",
    "TEST_SLACK_URL": "https://hooks.slack.com/services/T00000000/B00000000/X00000000",
    "TEST_SENDGRID_KEY": "SG.secret",
}
ALERTS = f"""\
alerts:
  - {{name: team, kind: webhook, variable: {HOOK}}}
  - {{name: mail, kind: email, variable: {MAIL}, events: [model.regression]}}
  - {{name: chat, kind: slack, variable: TEST_SLACK_URL, events: [model.rolled_back]}}
  - {{name: grid, kind: email, variable: TEST_SENDGRID_KEY, sender: a@example.org, to: [b@example.org], events: [model.rolled_back]}}
on_regression: {{preset: smoke}}
"""
REPORT = "<!doctype html><title>The report of a run</title><p>promoted</p>"


@dataclass(frozen=True)
class Served:
    """`url` is that of the UI, `api` of Prefect's API."""

    checkout: Path
    url: str
    env: dict[str, str]
    hook_port: int  # where the receivers of alerts are to be
    mail_port: int

    @property
    def api(self) -> str:
        return f"{self.url}/api"


def until(what: Callable[[], T], why: str, seconds: float = PATIENCE_S, every: float = 0.2) -> T:
    """The first true value of `what`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := what():
            return value
        time.sleep(every)
    raise AssertionError(f"{why}: not within {seconds:.0f} s")


def start(checkout: Path, env: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "serve", *arguments],
        cwd=checkout,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    made, *_ = fabricate.whole_run(folder, "made")
    write_bytes(made / "report.html", REPORT.encode())
    checkout = make_checkout(folder / "checkout", stages=STAGES.format(made=made))
    usual = (CHECKOUT / "prefect.yaml").read_text()
    write_bytes(checkout / "prefect.yaml", (usual[: usual.index("alerts: []")] + ALERTS).encode())
    params = (CHECKOUT / "params.yaml").read_text()
    write_bytes(checkout / "params.yaml", params.replace("approval: rule ", "approval: person ").encode())
    with socket.socket() as first, socket.socket() as second, socket.socket() as third:
        for one in (first, second, third):
            one.bind(("127.0.0.1", 0))
        port, hook, mail = (one.getsockname()[1] for one in (first, second, third))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RATCHET_"))}
    env = {**inherited, "PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1",
           "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1"}  # fmt: skip
    env |= {name: address.format(hook=hook, mail=mail) for name, address in ADDRESSES.items()}
    process = start(checkout, env, "--port", str(port))
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    else:
        logs = [path.read_text()[-2000:] for path in (checkout / ".ratchet/serve").glob("*.log")]
        raise AssertionError(f"ratchet serve ended with {process.wait()}: {''.join(lines)[-3000:]} {logs}")
    yield Served(checkout, f"http://127.0.0.1:{port}", env, hook, mail)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and said.strip() == "stopping"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "the server outlived ratchet serve"


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    from prefect import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: served.api}), get_client(sync_client=True) as api:
        yield api
