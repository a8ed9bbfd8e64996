"""The order of the test files: long ones first, so that no process is left alone with one at the end (`--no-loadscope-reorder` keeps it)."""

from __future__ import annotations

import signal

import pytest

# A shell starts background commands with Ctrl-C ignored, which everything that a test starts would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = (
    "envs/test_conformance", "tasks/test_durability.", "tasks/test_pipeline", "monitoring/serve/", "flows/test_evolve", "tasks/test_rollouts",
    "models/test_export", "envs/test_scienceworld.", "envs/test_alfworld_engines", "benchmarks/test_peers", "docs/test_site",
    "benchmarks/test_evidence", "tasks/test_served", "flows/test_served_keys", "docs/test_notebook", "rounds/test_rounds",
    "tasks/test_online_rounds",
)  # fmt: skip
"""By measured seconds, more than 35 each."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        path = item.nodeid.partition("::")[0].removeprefix("tests/")
        return next((number for number, long in enumerate(LONG) if path.startswith(long)), len(LONG))

    items.sort(key=place)
