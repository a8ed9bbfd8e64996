"""The environment that docs/environments.md writes, taken out of the page as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
MODULE = "parcel"
NAME = f"{MODULE}:Parcels"
LONGEST = 60  # lines of code: "about 40" is what the page promises


def code() -> str:
    """The page's first block of Python."""
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def write_module(folder: Path) -> Path:
    path = folder / f"{MODULE}.py"
    path.write_text(code(), encoding="utf-8")
    return path
