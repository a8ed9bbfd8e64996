"""Heavy libraries imported as lightly as they can be: the real ones, without what a pipeline has no use for.

Great Expectations loads SciPy's distributions and a library of charts for expectations and pictures that the suite has none of; they
are loaded where somebody asks them for something, which is never.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LATE = ("altair", "scipy.stats")


def great_expectations() -> Any:
    """The library, without telemetry."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # read when it is imported
    for name in LATE:
        load_late(name)
    with without_collections():
        import great_expectations

    return great_expectations


def load_late(name: str) -> None:
    """Lets `import name` succeed at once, and runs the module when something of it is first asked for.

    importlib's LazyLoader would do, but for `import name` itself, which looks at the module's spec and so already runs it.
    """
    if name not in sys.modules and importlib.util.find_spec(name) is not None:
        sys.modules[name] = _Late(name)


class _Late(types.ModuleType):
    """Stands for a module until it is asked for anything that it does not have: everything but its name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.util.find_spec(name)  # what `import` looks at
        del self.__dict__["__package__"], self.__dict__["__loader__"]

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__["__name__"]
        if sys.modules.get(own) is self:
            del sys.modules[own]
        real = importlib.import_module(own)
        self.__dict__.update(real.__dict__)
        return getattr(real, name)


@contextmanager
def without_collections() -> Iterator[None]:
    """Thousands of classes that stay are no garbage; looking for it costs an import a tenth of its time and more."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
