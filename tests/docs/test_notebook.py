"""The notebook runs as it stands, and what it shows is what it says now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="the notebook needs the extra docs: pip install 'ratchet-agents[docs]'")
pytest.importorskip("ipykernel", reason="the notebook needs the extra docs: pip install 'ratchet-agents[docs]'")
nbformat = pytest.importorskip("nbformat")

CHECKOUT = Path(__file__).parents[2]
NOTEBOOK = CHECKOUT / "docs" / "notebooks" / "episodes.ipynb"
FROM_THE_MODEL = re.compile(r"^small|held-out loss")
"""In lines that show what the trained model does: its last bits, and so its replies, differ between processors."""


def texts(notebook: object) -> list[str]:
    """Lines of all outputs as text, pictures left out."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]  # type: ignore[attr-defined]
    return [line for one in outputs for line in (one.get("text") or one.get("data", {}).get("text/plain", "")).splitlines()]


def test_the_notebook_is_committed_with_its_outputs_and_without_paths_of_a_machine() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert len(texts(notebook)) > 10
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
    text = re.sub(r'"image/png": "[^"]*"', "", NOTEBOOK.read_text(encoding="utf-8"))
    assert re.findall(r"/(?:home|root|tmp|work|usr|Users|opt|var)\b[^\"]*", text) == []


@pytest.mark.slow
def test_it_runs_and_shows_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # it makes a folder for itself
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    notebook, before = nbformat.read(NOTEBOOK, as_version=4), texts(nbformat.read(NOTEBOOK, as_version=4))
    client = nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute()
    shown = texts(notebook)

    assert [line for line in shown if not FROM_THE_MODEL.search(line)] == [line for line in before if not FROM_THE_MODEL.search(line)]
    success = {line.split()[0]: int(line.split()[1].rstrip("%")) for line in shown if " tasks, " in line and "%" in line}
    assert success["expert"] == 100
    assert success["small"] > success["random"], "the small model learned nothing from the demonstrations"
