"""For all tests: who runs beside whom where several processes run them."""

from __future__ import annotations

from pathlib import Path

import pytest

TOGETHER = ("tasks", "ui")  # folders whose files share one dear fixture


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay in one process, in their order, so that what they share is made once (`--dist loadgroup`)."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        item.add_marker(pytest.mark.xdist_group(folder if folder in TOGETHER else str(item.path)))
