"""One look of the monitor: what it plays, what it compares, whom it tells, and that it tells nobody twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import looking
from flows.evaluating import Player
from flows.looking import look
from ratchet.envs.benchmarks import benchmark
from ratchet.episodes.files import table_of
from ratchet.evaluation.panels import Panel, make_panel, read_panel, write_panel
from ratchet.evaluation.rows import outcomes_of
from ratchet.rendering import render_run
from ratchet.settings import dump_params, parse
from ratchet.store import cards, champions, outbox
from tests.flows.conftest import CHECKOUT

VERSION, TASKS = "aaaaaaaaaaaa", 60
RUN = ("smoke", ["line=quickstart", "prepare.games.confirm=24"])
WORK = os.path.join(".ratchet", "monitor", ".work")


class Skill:
    """Stands for the champion's model: solves the tasks whose place is below a share, and looks around in the others."""

    def __init__(self) -> None:
        self.solves, self.steps = 0.9, 6

    def play(self, _stage: Any, panel: Panel, _name: str) -> tuple[Any, Any, Any]:
        episodes, steps = [], []
        for place, task in enumerate(panel.tasks):
            solved = place % 10 < 10 * self.solves
            one = {"episode_id": f"e-{place:03d}", "env": task.env, "env_version": task.env_version, "task_id": task.task_id, "split": task.split}
            one |= {"stratum": task.stratum, "cluster": task.cluster, "policy_id": "actor", "solved": solved, "score": float(solved)}
            one |= {"round": 1, "iteration": 0, "sample": 0, "seed": task.seed, "terminated": solved, "truncated": not solved}
            episodes.append(one | {"group_id": task.task_id, "n_steps": self.steps, "n_tokens": 3 * self.steps})
            steps += [self._step(one["episode_id"], t) for t in range(self.steps)]
        tables = table_of("episodes", episodes), table_of("steps", steps)
        return outcomes_of(*tables, version=VERSION, panel=panel), *tables

    def _step(self, episode: str, t: int) -> dict[str, Any]:
        kind = ("go", "take", "open")[t % 3]
        one = {"episode_id": episode, "t": t, "observation": "You see a mug.", "reply": f"> {kind} mug", "action": f"{kind} mug", "action_type": kind}
        one |= {"prompt_ids": [1, 2], "reply_ids": [3, 4, 5], "logprobs": [0.0] * 3, "entropy": [0.0] * 3, "policy_version": VERSION}
        return one | {"tokens_from": "generated", "reward": 0.0, "score": 0.0, "format_ok": True, "valid": True, "repeated": False}


@pytest.fixture
def skill() -> Skill:
    return Skill()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skill: Skill) -> Path:
    """A checkout whose line has a champion; only its playing is made up."""
    run = tmp_path / "runs" / "r-1"
    run.mkdir(parents=True)
    params = render_run(CHECKOUT, *RUN)
    (run / "params.yaml").write_text(dump_params(params))
    settings = parse(params)
    (run / "data/games").mkdir(parents=True)
    counts = settings.prepare.games.model_dump()
    for split, tasks in benchmark("alfworld").prepare(run / "data/games", settings.env, counts, settings.seed).items():
        write_panel(run / f"data/panels/{split}.json", make_panel(split, tasks))
    card = {"version": VERSION, "line": "quickstart", "round": 1, "iteration": 0, "stage": "evolve_online", "actor": "actor", "parents": []}
    cards.add_version(tmp_path / "registry", {**card, "tokenizer_id": "t", "hashes": {}}, {"run": "r-1", "weights": "models/x", "line": "quickstart", "round": 1})
    (tmp_path / "registry" / "champions.json").write_text(json.dumps({"quickstart": VERSION}))
    assert champions.champions(tmp_path / "registry") == {"quickstart": VERSION}
    monkeypatch.setattr(looking, "recorded", lambda root, version: Player(version, version, run, True, skill.play))
    return tmp_path


def kinds(found: looking.Look) -> list[str]:
    return [event.kind for event in found.events]


def test_a_champion_that_does_worse_than_it_did_is_told_of_once(root: Path, skill: Skill, served: Path) -> None:
    first = look(root, None, TASKS, served)
    assert first.record["regression"] is None and first.events == [] and first.record["note"] is None
    panel = read_panel(next((root / ".ratchet/evaluations").glob("monitor-*/panel.json")))
    own = {task.task_id for path in (root / "runs/r-1/data/panels").glob("*.json") for task in read_panel(path).tasks}
    assert len(panel.tasks) == TASKS and not own & {task.task_id for task in panel.tasks}

    again = look(root, "quickstart", TASKS, served)
    assert again.record["id"] == first.record["id"] and again.events == [] and len(again.record["seen"]) == 2

    skill.solves = 0.1
    worse = look(root, None, TASKS, served)
    assert kinds(worse) == ["model.regression", "drift.detected"]
    event = worse.events[0]
    assert event.text.startswith(f"the champion {VERSION} does worse than it did: gain on confirm, at most -")
    assert event.data["source"] == "monitor" and event.data["monitor"] == worse.record["id"] and event.data["gain"]["mean"] == pytest.approx(-0.8)
    page = (worse.folder / "report.html").read_text()
    assert "Against version" in page and "-80.0" in page and "drift.success" in page
    assert look(root, None, TASKS, served).events == []  # the same again is no news
    assert [one.kind for one in outbox.pending(root)] == ["model.regression", "drift.detected"]
    assert not (root / WORK).exists()


def test_served_episodes_that_differ_are_drift_and_are_looked_at_once(root: Path, served: Path) -> None:
    drop(served / "monday.jsonl", 40, lambda t: f"> shout {t}")
    (served / "broken.jsonl").write_text("no JSON\n")
    (served / "escape.jsonl").symlink_to(root / "nowhere")
    found = look(root, None, TASKS, served)
    assert kinds(found) == ["drift.detected"] and "what was served" in found.events[0].text
    told = found.record["served"]
    assert (told["episodes"], len(told["files"])) == (40, 1) and told["columns"] == ["episode_length", "action_types", "observations"]
    assert len(told["problems"]) == 1 and told["problems"][0].startswith("broken.jsonl: no line is a conversation")
    assert "broken.jsonl" in (found.folder / "report.html").read_text()
    second = look(root, None, TASKS, served)
    assert second.record["served"]["episodes"] == 0 and second.events == []


def test_a_benchmark_without_further_games_is_watched_on_the_runs_own_panel(root: Path, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_fresh", lambda games, settings, tasks, taken: [])
    found = look(root, None, 20, served)
    assert "no games beyond those of the run" in found.record["note"] and found.record["summary"]["n"] == 20
    own = {task.task_id for task in read_panel(root / "runs/r-1/data/panels/confirm.json").tasks}
    assert len(own) == 24 and "no games beyond" in (found.folder / "report.html").read_text()


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "served-episodes"
    folder.mkdir()
    return folder


def drop(path: Path, count: int, says: Callable[[int], str]) -> None:
    lines = []
    for number in range(count):
        messages = [{"role": "user" if t % 2 == 0 else "assistant", "content": "You see a mug." if t % 2 == 0 else says(t)} for t in range(12)]
        lines.append(json.dumps({"task_id": f"served-{number}", "messages": messages}))
    path.write_text("\n".join(lines) + "\n")
