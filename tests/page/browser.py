"""A headless Chromium driven over its debugging protocol: page width, console errors, pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


def chromium() -> str | None:
    """Path of a Chromium, or None: then the browser tests are skipped."""
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


class Tab:
    def __init__(self, socket: Any):
        self.socket, self.last, self.errors = socket, 0, []
        self.own = ("file:", "data:", "about:")  # where requests may go

    def call(self, method: str, **params: Any) -> dict:
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "method": method, "params": params}))
        while True:
            message = self._receive()
            if message.get("id") == self.last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def _receive(self) -> dict:
        message = json.loads(self.socket.recv(timeout=60))
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("text", "exception"))
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(self.own):
            self.errors.append(f"request to {params['request']['url'][:200]}")
        message.setdefault("seen", method)
        return message

    def open(self, page: Path, width: int, dark: bool = False) -> None:
        """A file."""
        self._go(page.resolve().as_uri(), width, dark, "file:")

    def visit(self, url: str, width: int = 1280, dark: bool = False) -> None:
        """A page of a server, which may ask that server for more."""
        self.own = (*self.own, url[: url.index("/", 8)])
        self._go(url, width, dark, "http:")

    def _go(self, url: str, width: int, dark: bool, protocol: str) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState + location.protocol == 'complete{protocol}'")

    def wait(self, condition: str, seconds: float = 60.0) -> None:
        """Until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise RuntimeError(f"not within {seconds:.0f} s: {condition}")
            time.sleep(0.05)

    def key(self, text: str) -> None:
        """One key pressed and let go."""
        named = {"Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named.get(text, {"key": text, "text": text}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=text)

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self, path: Path, clip: tuple[int, int] | None = None) -> None:
        """The whole page, or its stretch (top, height)."""
        width = self.evaluate("innerWidth")
        top, height = clip or (0, min(16000, self.evaluate("document.documentElement.scrollHeight")))
        box = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=box)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """One tab of a Chromium of its own with an empty profile; it ends with the block."""
    from websockets.sync.client import connect

    profile.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [str(chromium()), *FLAGS, f"--user-data-dir={profile}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "NO_PROXY": "*"},
    )  # fmt: skip
    try:
        port_file, end = profile / "DevToolsActivePort", time.monotonic() + 60
        while not (port_file.is_file() and port_file.read_text().count("\n") >= 1):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"Chromium did not start (exit code {process.poll()})")
            time.sleep(0.1)
        port, path = port_file.read_text().split("\n")[:2]
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as socket:
            yield Tab(_Flat(socket))
    finally:
        process.terminate()
        process.wait(timeout=30)


class _Flat:
    """The browser's socket narrowed to its first page (flat protocol with a session id)."""

    def __init__(self, socket: Any):
        self.socket = socket
        socket.send(json.dumps({"id": 0, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
        target = self._answer(0)["targetId"]
        socket.send(json.dumps({"id": -1, "method": "Target.attachToTarget", "params": {"targetId": target, "flatten": True}}))
        self.session = self._answer(-1)["sessionId"]

    def _answer(self, key: int) -> dict:
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("id") == key:
                return message["result"]

    def send(self, text: str) -> None:
        self.socket.send(json.dumps(json.loads(text) | {"sessionId": self.session}))

    def recv(self, timeout: float) -> str:
        return self.socket.recv(timeout=timeout)
