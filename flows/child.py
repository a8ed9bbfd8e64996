"""Runs DVC for one stage in this process, and takes the whole process group down when the flow that started it is gone.

Started by flows/stages.py in a session of its own (so that Ctrl-C reaches only the flow) with a pipe as standard input. The flow
never writes to it: its end means that the flow was killed, and without this a stage would train on beside the resumed run.
`--prefect` runs a `prefect` command instead, for flows/serve.py: server and worker get a SIGTERM, to end in order. `--waiting` imports
DVC, which takes half a second, before it is known what for: one line of JSON on standard input says it.
"""

import json
import os
import runpy
import signal
import sys
import threading

WAITING = "--waiting"


def main(arguments: list[str]) -> int:
    """DVC's exit code for `arguments`, such as ["repro", "-s", "harvest@1"], or Prefect's for ["--prefect", "server", "start"]."""
    if arguments == [WAITING]:
        told = _wait()
        if told is None:
            return 0
        arguments = told
    is_prefect = arguments[:1] == ["--prefect"]
    watched = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the stage must not read, nor hold, the pipe
    os.close(nothing)
    threading.Thread(target=_die_with_parent, args=(watched, signal.SIGTERM if is_prefect else signal.SIGKILL), daemon=True).start()
    if is_prefect:
        sys.argv = ["prefect", *arguments[1:]]
        runpy.run_module("prefect", run_name="__main__", alter_sys=True)
        return 0
    from dvc.cli import main as dvc

    return int(dvc(arguments))


def _wait() -> list[str] | None:
    """DVC's arguments, read from the pipe to the flow; None where the flow ended without a further stage."""
    import dvc.cli.parser
    import dvc.commands.repro
    import dvc.repo  # noqa: F401

    line = b""
    while not line.endswith(b"\n"):  # and nothing behind it: the pipe's end is watched later
        read = os.read(0, 1)
        if not read:
            return None
        line += read
    told = json.loads(line)
    os.chdir(told["folder"])
    os.environ.update(told["environment"])
    return list(told["arguments"])


def _die_with_parent(watched: int, number: int) -> None:
    while os.read(watched, 1024):
        pass
    os.killpg(0, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
