"""The command: exit codes, one line for an error, hints, and what each command prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import cli, workspace
from ratchet.rendering import render_run
from ratchet.settings import load
from ratchet.store import cards, champions
from ratchet.yaml_files import read_yaml
from tests.flows.conftest import CHECKOUT


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of `ratchet ARGUMENTS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ratchet", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--set", "evolve_online.temprature=1"], "did you mean evolve_online.temperature?"),
        (["run", "--preset", "alfwrld"], "did you mean alfworld?"),
        (["run", "--resume", "nothing"], "no such run; there is none yet"),
        (["run", "--here", "--set", "seed=2"], "--here runs what params.yaml says"),
        (["report"], "has no report yet"),
        (["report", "nothing"], "no such run"),
        (["compare", "a", "b"], "the registry is empty"),
        (["waive", "nothing", "--reason", "x"], "no check 'nothing'"),
        (["runs", "--remove", "nothing"], "no such run"),
    ],
)
def test_bad_input_is_one_line_on_standard_error_and_exit_code_2(
    inside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"), [(["rum"], "Did you mean 'run'?"), (["run", "--presett", "a"], "--preset"), (["waive"], "check")]
)
def test_a_mistyped_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert said in err and "Traceback" not in err


def test_outside_a_checkout_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "runs")
    assert code == 2 and "no checkout of Ratchet here or above" in err


def test_help_is_instant_and_imports_nothing_heavy() -> None:
    program = "import sys; sys.argv = ['ratchet', '--help']\nfrom flows import cli\ntry: cli.main()\nexcept SystemExit: pass\n"
    program += "print(sorted({'prefect', 'dvc', 'torch', 'pandas', 'pyarrow', 'pydantic'} & set(sys.modules)))"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    assert "Run the pipeline" in done.stdout
    assert time.monotonic() - began < 5  # 0.3 s where nobody else works


def test_dry_run_prints_complete_params(inside: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = call(capsys, "run", "--dry-run", "--set", "rounds=3")
    (tmp_path / "params.yaml").write_text(out)
    assert code == 0 and load(tmp_path / "params.yaml").last == "3"
    assert workspace.list_runs(inside) == []


def test_render_renews_params(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = inside / "params.yaml"
    path.write_text(path.read_text().replace('last: "2"', 'last: "7"'))
    assert call(capsys, "render")[0] == 0
    assert path.read_text() == (CHECKOUT / "params.yaml").read_text()
    assert "as it should be" in call(capsys, "render")[1]


def test_runs_and_report_tell_what_there_is(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no runs yet" in call(capsys, "runs")[1]
    folder = workspace.create(inside, "one", render_run(inside, None, []))
    (folder / "reports").mkdir()
    (folder / "reports" / "report.html").write_text("page")
    assert json.loads(call(capsys, "runs", "--json")[1]) == [{"run": "one", "stages": "0/0", "state": "new", "time": "0.0 s"}]
    assert call(capsys, "report")[1].strip() == str(folder / "reports" / "report.html")
    assert call(capsys, "runs", "--remove", "one")[1].strip() == "one removed"


def test_a_waiver_is_written_down(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "waive", "episodes.not_empty", "--reason", "a dry run")
    assert code == 0, err
    assert read_yaml(inside / "waivers.yaml") == {"waivers": [{"check": "episodes.not_empty", "reason": "a dry run"}]}


def test_versions_are_listed_and_compared(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no versions yet" in call(capsys, "versions")[1]
    add_version(inside, "aaaaaaaaaaaa", 0, [True, False] * 24)
    add_version(inside, "bbbbbbbbbbbb", 1, [True] * 48)
    champions.set_champion(inside, "quickstart", "bbbbbbbbbbbb")
    rows = json.loads(call(capsys, "versions", "--json", "--line", "quickstart")[1])
    assert [(row["version"], row["status"]) for row in rows] == [("aaaaaaaaaaaa", "candidate"), ("bbbbbbbbbbbb", "champion")]
    assert rows[1]["test"].startswith("100.0 %")
    code, out, err = call(capsys, "compare", "aaaa", "champion")
    assert code == 0, err
    assert "+50.0 points" in out and "solved by B only: 24, by A only: 0" in out
    result = json.loads(call(capsys, "compare", "aaaa", "bbbb", "--json")[1])
    assert result["gain"]["mean"] == 0.5
    code, _, err = call(capsys, "compare", "aaaa", "bbbb", "--panel", "confirm")
    assert code == 2 and "try `--panel test`" in err
    assert "are the same version" in call(capsys, "compare", "bbbb", "champion")[2]


def test_a_run_that_holds_the_champion_is_not_removed(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = workspace.create(inside, "one", render_run(inside, None, []))
    add_version(inside, "aaaaaaaaaaaa", 0, [True], weights="runs/one/models/a")
    champions.set_champion(inside, "quickstart", "aaaaaaaaaaaa")
    code, _, err = call(capsys, "runs", "--remove", "one")
    assert code == 2 and "holds the weights of aaaaaaaaaaaa, champion of line quickstart" in err
    assert folder.is_dir()


def add_version(root: Path, version: str, number: int, solved: list[bool], weights: str | None = None) -> None:
    """A version with outcomes on a test panel, as a run leaves it."""
    from ratchet.episodes.files import table_of, write_table

    weights = weights or f"models/{version}"
    folder = root / weights
    folder.mkdir(parents=True)
    (folder / "ratchet.json").write_text(json.dumps({"version": version}))
    card = {"version": version, "line": "quickstart", "round": number, "iteration": 0, "stage": "evaluate", "actor": "actor", "parents": []}
    run = {"run": "r", "weights": weights, "line": "quickstart", "round": number}
    cards.add_version(root / "registry", {**card, "tokenizer_id": "t", "hashes": {}}, run)
    rows = [outcome(version, place, value) for place, value in enumerate(solved)]
    path = root / "data" / f"{version}.parquet"
    path.parent.mkdir(exist_ok=True)
    write_table(path, "outcomes", table_of("outcomes", rows))
    mean = sum(solved) / len(solved)
    summary = {"n": len(solved), "success": {"mean": mean, "low": mean, "high": mean}}
    entry = {"run": "r", "round": number, "panel": "test", "panel_hash": "h", "summary": summary, "outcomes": os.path.relpath(path, root)}
    cards.append_evaluation(root / "registry", version, entry)


def outcome(version: str, place: int, solved: bool) -> dict[str, object]:
    return {
        "version": version,
        "panel": "test",
        "panel_hash": "h",
        "task_id": f"task-{place:02d}",
        "stratum": "look",
        "cluster": f"scene-{place // 4}",
        "sample": 0,
        "seed": 1,
        "solved": solved,
        "score": float(solved),
        "truncated": False,
        "error": None,
        "n_steps": 3,
        "n_tokens": 30,
        "n_invalid": 0,
        "episode_id": f"episode-{place}",
    }
