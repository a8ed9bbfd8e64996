"""A measuring process: `python -m benchmarks.peers.child SIDE SPEC JSON` prints the result on a line of its own."""

from __future__ import annotations

import importlib
import json
import sys

from benchmarks.peers import spec as specs


def main(side: str, spec: str, given: str) -> None:
    name, _, function = side.partition(":")
    module = importlib.import_module(f"benchmarks.peers.{name}")
    measured = getattr(module, function or "measure")(getattr(specs, spec)(**json.loads(given)))
    print(specs.MARK + json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
