"""A project of one's own: made from the package, its stages run the installed code, its settings come from presets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from flows import project, workspace
from flows.dag import stage_names
from flows.schema import FILE, text
from ratchet import installed
from ratchet.envs.benchmarks import BENCHMARKS
from ratchet.errors import RatchetError
from ratchet.rendering import render_run
from ratchet.settings import load
from ratchet.yaml_files import read_yaml
from tests.flows.conftest import CHECKOUT, run_git
from tests.flows.test_cli import call

jsonschema = pytest.importorskip("jsonschema")
OWN = "from ratchet.envs.alfworld.benchmark import Alfworld\n\n\nclass Mine(Alfworld):\n    pass\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project.create(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def test_a_project_is_a_committed_repository_whose_stages_dvc_can_read(made: Path) -> None:
    assert run_git(made, "status", "--porcelain") == ""
    assert load(made / "params.yaml") == load(project.template() / "params.yaml")
    assert stage_names(made) == stage_names(CHECKOUT)
    deps = {dep for entry in yaml.safe_load((made / "dvc.yaml").read_text())["stages"].values() for dep in entry.get("do", entry)["deps"]}
    assert not [dep for dep in deps if dep.split("/")[0] in installed.ROOMS]
    assert {dep for dep in deps if dep.startswith("installed/")} == {f"installed/{path.name}" for path in (made / "installed").iterdir()}


def test_a_run_of_a_project_gets_fingerprints_of_what_is_installed_now(made: Path) -> None:
    stale = made / "installed" / "tasks.seal"
    stale.write_text("of an older version\n")
    folder = workspace.create(made, "one", render_run(made, "smoke", []))
    assert (folder / "installed" / "tasks.seal").read_text() != stale.read_text()
    installed.require_current(folder, ["installed/tasks.seal", "data/games"])
    with pytest.raises(RatchetError, match="run `ratchet render`"):
        installed.require_current(made, ["installed/tasks.seal"])


def test_a_stage_that_would_record_other_code_than_it_runs_is_refused_until_render(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "installed" / "tasks.seal").write_text("of an older version\n")
    (made / "reports").mkdir()
    (made / "reports" / "report.json").write_text('{"failed_checks": []}')
    seal = [sys.executable, "-m", "tasks.seal"]
    refused = subprocess.run(seal, cwd=made, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "tasks.seal of the installed package has changed" in refused.stderr
    assert "installed/tasks.seal: renewed" in call(capsys, "render")[1]
    done = subprocess.run(seal, cwd=made, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and (made / "reports" / "seal.json").is_file(), done.stderr


def test_an_environment_of_ones_own_is_part_of_what_stages_depend_on(made: Path) -> None:
    before = installed.fingerprint(installed.OWN, made)
    (made / "mine.py").write_text(OWN)
    assert installed.fingerprint(installed.OWN, made) == before
    params = (made / "params.yaml").read_text()
    (made / "params.yaml").write_text(params.replace("name: alfworld", "name: mine:Mine"))
    named = installed.fingerprint(installed.OWN, made)
    (made / "mine.py").write_text(OWN + "# changed\n")
    assert len({before, named, installed.fingerprint(installed.OWN, made)}) == 3


@pytest.mark.parametrize("name", ["tasks.no_such_stage", "os.path"])
def test_a_part_that_is_not_installed_is_refused(made: Path, name: str) -> None:
    with pytest.raises(RatchetError, match="the installed package has no"):
        installed.fingerprint(name, made)


def test_only_code_becomes_fingerprints() -> None:
    before = "# tasks/NAME.py\n    cmd: python -m tasks.prepare\n    deps: [tasks/prepare.py, ratchet/envs, data/games, waivers.yaml]\n"
    assert installed.for_project(before) == (
        "# tasks/NAME.py\n    cmd: python -m tasks.prepare\n    deps: [installed/tasks.prepare, installed/ratchet.envs, data/games, waivers.yaml]\n"
    )


def test_init_refuses_a_folder_that_holds_something_and_leaves_nothing_where_git_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    code, _, err = call(capsys, "init", str(tmp_path / "full"))
    assert code == 2 and "exists and is not empty" in err
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", "")
    assert call(capsys, "init", str(tmp_path / "empty"))[0] == 2
    assert call(capsys, "init", str(tmp_path / "new"))[0] == 2
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["empty", "full", "notes.txt"]


@pytest.mark.slow
def test_an_installed_wheel_holds_all_that_a_project_begins_with(tmp_path: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.splitlines()):
        if (CHECKOUT / name).is_file() and name.split("/")[0] not in ("tests", "docs", "benchmarks"):
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "source" / name).write_bytes((CHECKOUT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path)]
    subprocess.run(build, cwd=tmp_path / "source", check=True, timeout=200, capture_output=True)
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path / "site")
    for path in (tmp_path / "source").iterdir():
        assert path.name != "build" or path.is_dir()
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    ratchet = [sys.executable, "-P", "-m", "flows.cli"]
    done = subprocess.run([*ratchet, "init", "mine"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    files = {str(path.relative_to(tmp_path / "mine")) for path in (tmp_path / "mine").rglob("*") if ".git/" not in str(path)}
    project.create(tmp_path / "editable")
    assert files == {str(path.relative_to(tmp_path / "editable")) for path in (tmp_path / "editable").rglob("*") if ".git/" not in str(path)}
    where = [sys.executable, "-P", "-c", "import flows, tasks, ratchet; print(flows.__file__, tasks.__file__, ratchet.__file__)"]
    said = subprocess.run(where, cwd=tmp_path / "mine", env=env, capture_output=True, text=True, check=True).stdout
    assert said.count(str(tmp_path / "site")) == 3
    dry = subprocess.run([*ratchet, "run", "--preset", "smoke", "--dry-run"], cwd=tmp_path / "mine", env=env, capture_output=True, text=True)
    assert dry.returncode == 0 and "line: smoke" in dry.stdout, dry.stderr


def test_use_writes_a_preset_and_keeps_the_comments(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "use", "smoke", "--set", "rounds=3")
    assert code == 0, err
    assert "params.yaml: smoke," in out
    written = (made / "params.yaml").read_text()
    assert read_yaml(made / "params.yaml") == render_run(made, None, []) == {**render_run(made, "smoke", ["rounds=3"])}
    assert "# champions are compared and kept within a line" in written and '"3": {prev: "2"}' in written
    assert call(capsys, "use", "quickstart", "--force")[0] == 0
    assert (made / "params.yaml").read_text() == (project.template() / "params.yaml").read_text()


def test_use_goes_from_preset_to_preset_but_never_loses_own_settings(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for preset in ("alfworld", "smoke", "quickstart", "alfworld"):
        assert call(capsys, "use", preset)[0] == 0
    path = made / "params.yaml"
    path.write_text(path.read_text().replace("temperature: 1.0", "temperature: 0.7", 1))
    before = path.read_text()
    code, _, err = call(capsys, "use", "smoke")
    assert code == 2 and "(harvest.temperature) that would be lost" in err and path.read_text() == before
    assert call(capsys, "use", "smoke", "--force")[0] == 0
    assert load(path).line == "smoke" and load(path).harvest.temperature == 1.0


def test_use_names_the_nearest_preset(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean alfworld?" in call(capsys, "use", "alfwrld")[2]


def test_the_schema_in_the_repository_is_that_of_the_settings() -> None:
    assert (CHECKOUT / FILE).read_text() == text(list(BENCHMARKS)), "run `ratchet schema --write`"
    assert f"$schema={FILE}" in (CHECKOUT / "params.yaml").read_text().splitlines()[0]


def test_params_and_rendered_presets_fit_the_schema_and_mistakes_do_not(made: Path) -> None:
    schema = json.loads((CHECKOUT / FILE).read_text())
    for preset in (None, *(path.stem for path in (CHECKOUT / "presets").glob("*.yaml"))):
        jsonschema.validate(render_run(CHECKOUT, preset, []), schema)
    params = render_run(CHECKOUT, None, [])
    mistakes = [
        {**params, "sed": 1},
        {**params, "seed": "1"},
        {**params, "env": {**params["env"], "options": {**params["env"]["options"], "rooms": 1}}},
        {**params, "env": {**params["env"], "options": {"no_such_option": 1}}},
    ]
    for wrong in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_schema_of_a_project_knows_its_own_environment(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "mine.py").write_text(OWN)
    path = made / "params.yaml"
    path.write_text(path.read_text().replace("name: alfworld", "name: mine:Mine"))
    assert call(capsys, "schema", "--write")[0] == 0
    assert "mine.Mine.Options" in json.loads((made / FILE).read_text())["$defs"]
    assert path.read_text().count("yaml-language-server") == 1


@pytest.mark.parametrize(
    ("shell", "words", "expected"),
    [
        ("bash", "ratchet ro", "rollback"),
        ("zsh", "ratchet init --h", "--help"),
        ("fish", "ratchet export-", "export-episodes"),
        ("bash", "ratchet use al", "alfworld"),
        ("bash", "ratchet watch on", "one.1"),
        ("bash", "ratchet promote 1a", "1a2b3c4d5e6f"),
    ],
)
def test_the_shell_completes_commands_options_presets_runs_and_versions(shell: str, words: str, expected: str, tmp_path: Path) -> None:
    for name in ("params.yaml", "dvc.yaml", "presets/alfworld.yaml", "registry/1a2b3c4d5e6f.json", "runs/one.1/params.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    env = {**os.environ, "_RATCHET_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    env |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ratchet = Path(sys.executable).parent / "ratchet"
    done = subprocess.run([ratchet], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert expected in done.stdout, done.stderr
