"""The shape of the house: dependencies point one way, every stage has its module, workers start without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

from ratchet.settings import parse, render_params

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("flows", "tasks", "monitoring", "ratchet")
ALLOWED = {
    "flows": {"flows", "tasks", "monitoring", "ratchet"},
    "tasks": {"tasks", "monitoring", "ratchet"},
    "monitoring": {"monitoring", "ratchet"},
    "ratchet": {"ratchet"},
}
"""What may import what. flows, the first room, runs tasks as DVC stages; it may look into the rooms below."""

ORCHESTRATION = {"prefect", "dvc"}
ROOMS_WITH_ORCHESTRATION = {"flows"}
PRESETS = sorted((ROOT / "presets").glob("*.yaml"))


def stages() -> dict[str, dict]:
    """Stages of dvc.yaml by name; of a `foreach` stage, what it does."""
    entries = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return {name: entry.get("do", entry) for name, entry in entries.items()}


def files(room: str) -> list[Path]:
    found = sorted((ROOT / room).rglob("*.py"))
    assert found, f"{room} is empty"
    return found


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, at the top or inside a function, and of `import_module("literal")`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")
        elif isinstance(node, ast.Call) and node.args and _name(node.func) in ("import_module", "__import__"):
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def wrong_imports(room: str, source: str, file: str) -> list[str]:
    """What a file of `room` imports and must not, as `file:line imports module`."""
    forbidden = (set(ROOMS) - ALLOWED[room]) | {"tests", "benchmarks"}
    if room not in ROOMS_WITH_ORCHESTRATION:
        forbidden |= ORCHESTRATION
    return [
        f"{file}:{line} imports {module}" for line, module in imports(source) if module.split(".")[0] in forbidden or module.startswith(".")
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_dependencies_point_one_way(room: str) -> None:
    wrong = [text for path in files(room) for text in wrong_imports(room, path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))]
    assert not wrong


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("ratchet", "import prefect"),
        ("ratchet", "def run():\n    from dvc.repo import Repo"),
        ("ratchet", "from tasks.common import Stage"),
        ("ratchet", "if True:\n    import monitoring.quality as quality"),
        ("ratchet", "import importlib\nimportlib.import_module('flows.cli')"),
        ("monitoring", "from tasks import common"),
        ("tasks", "from flows.dag import stage_names"),
        ("tasks", "import prefect.task"),
        ("flows", "from tests.page import browser"),
        ("ratchet", "from . import files"),
    ],
)
def test_an_import_against_the_direction_is_found(room: str, source: str) -> None:
    assert wrong_imports(room, source, "x.py")


def test_a_package_whose_name_begins_like_a_room_is_not_taken_for_it() -> None:
    assert not wrong_imports("ratchet", "import dvclive, tasksmith\nfrom torch import flows", "x.py")


def test_a_folder_of_a_room_with_code_is_a_package() -> None:
    folders = {path.parent for room in ROOMS for path in files(room)}
    missing = sorted(str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file())
    assert not missing, "these would be left out of an installed Ratchet"


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for name, texts in project["optional-dependencies"].items() if name != "dev" for text in texts]
    declared = {_normal(text) for text in [*project["dependencies"], *extras]}
    own = {*ROOMS, *sys.stdlib_module_names}
    distributions = packages_distributions()
    used = {name.split(".")[0] for room in ROOMS for path in files(room) for _, name in imports(path.read_text(encoding="utf-8"))} - own
    undeclared = {name for name in used if not {_normal(one) for one in distributions.get(name, [name])} & declared}
    assert undeclared <= {"alfworld", "fast_downward"}  # the wheel taken without its dependencies; part of textworld[pddl]


def _normal(requirement: str) -> str:
    """The plain name of a requirement: `great_expectations>=1` and `great-expectations` are the same."""
    name = requirement
    for end in "=<>!~[; ":
        name = name.partition(end)[0]
    return name.lower().replace("_", "-")


@pytest.mark.parametrize("name", stages())
def test_a_stage_runs_the_module_of_its_name_and_depends_on_it(name: str) -> None:
    entry = stages()[name]
    module = f"tasks/{name}.py"
    assert (ROOT / module).is_file()
    assert entry["cmd"].split()[:3] == ["python", "-m", f"tasks.{name}"]
    assert module in entry["deps"]


@pytest.mark.parametrize("name", stages())
def test_a_stage_depends_on_code_that_is_there(name: str) -> None:
    code = [dep for dep in stages()[name]["deps"] if dep.split("/")[0] in ROOMS]
    assert not [dep for dep in code if not (ROOT / dep).exists()]


def test_no_two_stages_write_one_out() -> None:
    outs = [path for entry in stages().values() for kind in ("outs", "metrics") for path in entry.get(kind, [])]
    assert len(outs) == len(set(outs))


def test_no_out_is_a_pickle() -> None:
    """Outs are Parquet, JSON, safetensors and pages: nothing that runs code when it is read."""
    outs = [path for entry in stages().values() for kind in ("outs", "metrics") for path in entry.get(kind, [])]
    assert not [path for path in outs if Path(path).suffix in {".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib", ".npy"}]


@pytest.mark.parametrize("room", ["tasks", "monitoring", "ratchet"])
def test_only_the_channel_to_an_environment_worker_pickles(room: str) -> None:
    picklers = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve"}
    found = {
        str(path.relative_to(ROOT))
        for path in files(room)
        for _, module in imports(path.read_text(encoding="utf-8"))
        if module.split(".")[0] in picklers
    }
    assert found <= {"ratchet/envs/worker.py", "ratchet/envs/process.py"}
    saved = [str(path.relative_to(ROOT)) for path in files(room) if "torch.save(" in path.read_text(encoding="utf-8")]
    assert not saved


@pytest.mark.parametrize("module", ["ratchet.envs.worker", "ratchet.envs.benchmarks", "ratchet.envs.alfworld.benchmark", "flows.cli"])
def test_this_module_starts_without_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers', 'prefect', 'dvc'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("preset", PRESETS, ids=[path.stem for path in PRESETS])
def test_a_preset_renders_to_valid_settings_with_a_line_of_its_own(preset: Path) -> None:
    base = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    differences = yaml.safe_load(preset.read_text(encoding="utf-8")) or {}
    assert parse(render_params(base, differences, [])).line == preset.stem
