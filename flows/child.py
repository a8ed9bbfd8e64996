"""Runs DVC for one stage in this process, and takes the whole process group down when the flow that started it is gone.

Started by flows/stages.py in a session of its own (so that Ctrl-C reaches only the flow) with a pipe as standard input. The flow
never writes to it: its end means that the flow was killed, and without this a stage would train on beside the resumed run.
"""

import os
import signal
import sys
import threading


def main(arguments: list[str]) -> int:
    """DVC's exit code for `arguments`, such as ["repro", "-s", "harvest@1"]."""
    watched = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the stage must not read, nor hold, the pipe
    os.close(nothing)
    threading.Thread(target=_die_with_flow, args=(watched,), daemon=True).start()
    from dvc.cli import main as dvc

    return int(dvc(arguments))


def _die_with_flow(watched: int) -> None:
    while os.read(watched, 1024):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
