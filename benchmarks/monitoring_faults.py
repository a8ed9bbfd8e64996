"""Faults planted into real rows of a round, each with the name by which it has to be caught."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from monitoring.drift import compare_sides
from monitoring.drift_columns import Column, Side
from monitoring.quality import run_suite
from monitoring.quality_results import Results
from monitoring.regression import judge
from monitoring.regression_simulation import World, rows
from ratchet.episodes.files import read_table, table_of
from ratchet.errors import RatchetError
from ratchet.evaluation.compare import compare
from ratchet.evaluation.panels import read_panel
from ratchet.files import read_json

Rows = list[dict[str, Any]]
EPISODES = 60  # of the harvest that faults are planted in


class Data:
    """Rows of one round as lists that a fault changes."""

    def __init__(self, workspace: Path, limits: dict[str, float]) -> None:
        base = workspace / "data" / "rounds" / "1"
        self.limits, self.replay = limits, read_json(base / "labels" / "replay.json")
        self.panels = {name: {task.task_id for task in read_panel(workspace / "data" / "panels" / f"{name}.json").tasks}
                       for name in ("train", "select", "confirm", "test")}  # fmt: skip
        episodes = read_table(base / "harvest" / "episodes.parquet", "episodes").to_pylist()
        order = np.linspace(0, len(episodes) - 1, min(EPISODES, len(episodes))).astype(int)
        self.episodes: Rows = [episodes[i] for i in order]
        kept = {row["episode_id"] for row in self.episodes}
        self.steps, self.labels = (
            [row for row in read_table(base / path, kind).to_pylist() if row["episode_id"] in kept]
            for path, kind in (("harvest/steps.parquet", "steps"), ("labels/labels.parquet", "labels"))
        )
        panel = read_panel(workspace / "data" / "panels" / "confirm.json")
        self.panel, self.panel_hash, self.tasks = panel.name, panel.hash, frozenset(task.task_id for task in panel.tasks)
        self.evaluation = base / "evaluation"
        self.outcomes = read_table(self.evaluation / "confirm.parquet", "outcomes").to_pylist()

    def steps_of(self, row: dict[str, Any]) -> Rows:
        return [step for step in self.steps if step["episode_id"] == row["episode_id"]]

    def won(self) -> dict[str, Any]:
        """A solved episode of a model, or else of anybody."""
        solved = [row for row in self.episodes if row["solved"]]
        return max(solved, key=lambda row: (row["temperature"] is not None, row["n_steps"]))

    def sampled(self) -> dict[str, Any]:
        """A step that a model wrote."""
        return next(step for step in self.steps if step["tokens_from"] == "generated" and step["logprobs"])

    def failed(self) -> set[str]:
        tables = [table_of(kind, rows_) for kind, rows_ in (("episodes", self.episodes), ("steps", self.steps), ("labels", self.labels))]
        verdict = run_suite(*tables, limits=self.limits, panels=self.panels, replay=self.replay)
        return {check["name"] for check in verdict["checks"] if not check["passed"]}

    def failed_evaluation(self) -> set[str]:
        tables = [read_table(self.evaluation / f"{kind}.parquet", kind) for kind in ("episodes", "steps")]
        results = Results(table_of("outcomes", self.outcomes), self.panel, self.panel_hash, self.tasks)
        verdict = run_suite(*tables, None, limits=self.limits, panels=None, replay=None, results=results)
        return {check["name"] for check in verdict["checks"] if not check["passed"]}


def _swap_signs(data: Data) -> None:
    for step in data.steps:
        step["reward"] = -step["reward"]


def _shift_labels(data: Data) -> None:
    mine = [label for label in data.labels if label["episode_id"] == data.won()["episode_id"]]
    for label, after in pairwise(mine):
        label["ttg"] = after["ttg"]


def _empty(data: Data) -> None:
    data.episodes, data.steps, data.labels = [], [], []


def _drop_step(data: Data) -> None:
    data.steps.remove(data.steps_of(data.won())[0])


def _action_elsewhere(data: Data) -> None:
    next(step for step in data.steps if step["format_ok"])["action"] = "dance on the moon"


def _other_length(data: Data) -> None:
    step = data.sampled()
    step["logprobs"] = step["logprobs"][:-1]


def _twice(data: Data) -> None:
    data.episodes.append(dict(data.episodes[0]))


def _again(data: Data) -> None:
    data.episodes.append({**data.episodes[0], "episode_id": "again"})


DATA_FAULTS: dict[str, tuple[Callable[[Data], None], str]] = {
    "reward signs swapped": (_swap_signs, "steps.reward_follows_score"),
    "an episode twice": (_twice, "episodes.id_unique"),
    "a sample twice under another id": (_again, "episodes.sample_unique"),
    "a training task in a held-out panel": (lambda data: data.panels["confirm"].add(data.episodes[0]["task_id"]), "episodes.tasks_leaked"),
    "NaN among log-probs": (lambda data: data.sampled()["logprobs"].__setitem__(0, math.nan), "steps.logprobs_finite"),
    "log-probs above 0": (lambda data: data.sampled()["logprobs"].__setitem__(0, 0.7), "steps.logprobs_not_positive"),
    "a log-prob missing": (_other_length, "steps.logprobs_length"),
    "labels off by one step": (_shift_labels, "labels.ttg_suffix_sum"),
    "an empty round": (_empty, "episodes.not_empty"),
    "a step lost": (_drop_step, "episodes.steps_complete"),
    "an action that nobody wrote": (_action_elsewhere, "steps.action_literal_in_reply"),
    "an outcome turned round": (lambda data: data.won().update(solved=False), "episodes.solved_is_full_score"),
    "a replay that differs": (lambda data: data.replay.update(replayed=10, mismatched=3, rows=[]), "labels.replay_mismatch"),
}
RESULT_FAULTS: dict[str, tuple[Callable[[Data], None], str]] = {
    "an evaluation of another panel": (lambda data: data.outcomes[0].update(panel_hash="0" * 64), "outcomes.same_panel"),
    "a task that was not evaluated": (lambda data: data.outcomes.pop(), "outcomes.complete"),
    "outcomes of two versions": (lambda data: data.outcomes[0].update(version="0" * 12), "outcomes.one_version"),
    "an outcome that its episode denies": (lambda data: data.outcomes[0].update(n_steps=999), "outcomes.episode_matches"),
}


def data_faults(workspace: Path, limits: dict[str, float]) -> dict[str, bool]:
    """Fault → whether it was caught by its name, and whether clean rows of the same kind pass."""
    clean = Data(workspace, limits)
    unclean = {name for name in clean.failed() | clean.failed_evaluation() if name in {one[1] for one in (*DATA_FAULTS.values(), *RESULT_FAULTS.values())}}
    found = {}
    for faults, seen in ((DATA_FAULTS, Data.failed), (RESULT_FAULTS, Data.failed_evaluation)):
        for fault, (plant, name) in faults.items():
            data = Data(workspace, limits)
            plant(data)
            found[fault] = name in seen(data) and name not in unclean
    return found


def drift_faults(clean: Side, again: Side, limits: Any) -> dict[str, bool]:
    """Changes of what a policy does, planted into `again`, a second play of the policy of `clean`."""

    def caught(side: Side, column: str) -> bool:
        one = next(one for one in compare_sides(clean, side, limits, "warm") if one["column"] == column)
        return one["level"] != "ok"

    found = {}
    for fault, column, change in (
        ("a policy that collapsed to one action", "action_types", lambda values: np.full(len(values), "look", object)),
        ("replies twice as long", "tokens_per_step", lambda values: 2 * values),
        ("episodes twice as long", "episode_length", lambda values: 2 * values),
        ("a policy that refuses half of its steps", "refusal_share", lambda values: np.where(np.arange(len(values)) % 2, 1.0, values)),
        ("another environment", "observations", lambda values: np.array([f"Zimmer {text[::-1]}" for text in values], object)),
    ):
        own = again.columns[column]
        side = Side(again.tasks, again.strata, {**again.columns, column: Column(change(own.values), own.owner)})
        found[fault] = caught(side, column) and not caught(again, column)
    ratios = Side(again.tasks, again.strata, {"effective_samples": Column(np.random.default_rng(1).normal(0, 3, 500), np.arange(500))})
    found["updates that went too far"] = caught(ratios, "effective_samples")
    return found


def regression_faults() -> dict[str, bool]:
    """Versions that are worse, on made-up outcomes of a panel."""
    world = World()
    rng = np.random.default_rng(1)
    champion = rng.random(world.tasks) < 0.6
    strata = np.array([row["stratum"] for row in rows("a", champion, world)])
    worse = champion & (rng.random(world.tasks) >= 0.15)
    heat = np.where(strata == "heat", champion & (rng.random(world.tasks) < 0.4), champion | (rng.random(world.tasks) < 0.1))

    def judged(version: np.ndarray) -> list[str]:
        comparison = compare(rows("a", champion, world), rows("b", version, world), level=0.99, resamples=2000)
        return [test["name"] for test in judge(comparison, 0.15)["tests"] if not test["passed"]]

    found = {
        "a version that is worse": "regression.success" in judged(worse),
        "a kind of task that was lost": "regression.stratum.heat" in judged(heat) and judged(champion) == [],
    }
    try:
        compare(rows("a", champion, world), [{**row, "panel_hash": "other"} for row in rows("b", champion, world)])
        found["a reference of another panel"] = False
    except RatchetError:
        found["a reference of another panel"] = True
    gate = {"gate": {"passed": False, "ece": 0.4}, "reason": "ECE 0.40"}
    comparison = compare(rows("a", champion, world), rows("b", champion, world), level=0.99, resamples=1000)
    tests = judge(comparison, 0.15, gates={"meter": gate})["tests"]
    found["a meter that no longer measures"] = any("meter_calibration" in test["name"] and not test["passed"] for test in tests)
    return found


