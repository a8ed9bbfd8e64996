"""Benchmarks behind one interface. `FACTORIES` names what builds an environment in a worker process."""

from __future__ import annotations

import difflib

from ratchet.errors import RatchetError

FACTORIES = {"alfworld": "ratchet.envs.alfworld:make"}


def factory(name: str) -> str:
    """The `module:callable` of an environment. Raises RatchetError for an unknown name."""
    if name not in FACTORIES:
        near = difflib.get_close_matches(name, FACTORIES, n=1, cutoff=0.0)
        raise RatchetError(f"env.name: no environment {name!r}; did you mean {near[0]!r}? (known: {', '.join(sorted(FACTORIES))})")
    return FACTORIES[name]
