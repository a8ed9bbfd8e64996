"""Run reports over HTTP: a browser that shows Prefect's UI follows no `file:` links. This machine only, reading only, reports only."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from flows.workspace import HERE

URL_VARIABLE = "RATCHET_REPORTS_URL"  # where flow runs learn from which address their reports open
HOST = "127.0.0.1"
_PATH = re.compile(r"/(runs|monitor)/([A-Za-z0-9][A-Za-z0-9._-]*)/report\.html")


def report_url(base: str, run_id: str) -> str:
    return f"{base}/runs/{run_id}/report.html"


def monitor_url(base: str, look: str) -> str:
    """Of what the monitor wrote in one look."""
    return f"{base}/monitor/{look}/report.html"


@contextmanager
def serving(root: Path, port: int) -> Iterator[str]:
    """Serves the reports of a checkout in threads of this process; gives the address. `port` 0 takes any. Raises OSError."""
    server = ThreadingHTTPServer((HOST, port), type("Handler", (_Handler,), {"root": root}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    root: Path

    def do_GET(self) -> None:
        # another Host is a page of somebody's that had its own name resolved to this machine
        is_ours = self.headers.get("Host", "").partition(":")[0] in (HOST, "localhost")
        found = _PATH.fullmatch(self.path) if is_ours else None
        report = None if found is None else self._file(found[1], found[2])
        if report is None or not report.is_file():
            self.send_error(HTTPStatus.NOT_FOUND, "no such report")
            return
        body = report.read_bytes()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def _file(self, kind: str, name: str) -> Path:
        if kind == "monitor":
            return self.root / ".ratchet" / "monitor" / name / "report.html"
        return (self.root if name == HERE else self.root / "runs" / name) / "reports" / "report.html"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the command's."""
