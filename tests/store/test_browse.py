"""Lists of episodes from the index: what is counted is what is there, on both databases."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import Engine

from ratchet.episodes.files import table_of, write_table
from ratchet.store.browse import CHOICES, Filter, list_episodes, places_of
from ratchet.store.database import open_index
from ratchet.store.index import checkout_id, index_run

OUTCOMES = ((True, False, None), (False, False, None), (False, True, None), (False, False, "crash"), (None, None, None))


def rows(name: str, n: int, k: int) -> list[dict]:
    found = []
    for i in range(n):
        solved, truncated, error = OUTCOMES[i % len(OUTCOMES)]
        found.append(
            {"episode_id": f"{name}-{i:03d}", "task_id": f"task-{i % 7}", "stratum": ("heat", "cool", None)[i % 3], "policy_id": ("actor", "random")[i % 2],
             "round": k, "iteration": 0, "sample": i, "seed": 1, "solved": solved, "truncated": truncated, "error": error, "score": 0.5, "n_steps": 3, "n_tokens": 9}
        )  # fmt: skip
    return found


@pytest.fixture
def played(tmp_path: Path, database: str) -> tuple[Engine, str, list[dict]]:
    """Two runs with three files each; run-2 is the newer one."""
    engine, everything = open_index(tmp_path), []
    for run in ("run-1", "run-2"):
        for place, k, n in (("data/demonstrations", 0, 11), ("data/rounds/1/harvest", 1, 23), ("data/rounds/10/harvest", 10, 5)):
            mine = rows(f"{run}-{k}", n, k)
            write_table(tmp_path / "runs" / run / place / "episodes.parquet", "episodes", table_of("episodes", mine))
            everything += [row | {"run": run, "stage": f"harvest@{k}" if k else "demonstrations"} for row in mine]
        index_run(engine, tmp_path / "runs" / run, run, tmp_path)
    return engine, checkout_id(tmp_path), everything


def outcome(row: dict) -> str:
    return "error" if row["error"] else "solved" if row["solved"] else "truncated" if row["truncated"] else "unsolved"


def passes(row: dict, wanted: Filter) -> bool:
    named = {"run": row["run"], "stage": row["stage"], "round": row["round"], "policy": row["policy_id"], "stratum": row["stratum"], "outcome": outcome(row)}
    failed = wanted.outcome == "failed" and named["outcome"] in ("unsolved", "truncated")
    task = wanted.task is None or row["task_id"] == wanted.task or (wanted.task not in {f"task-{i}" for i in range(7)} and row["task_id"].startswith(wanted.task))
    return task and all(getattr(wanted, name) in (None, named[name]) or (name == "outcome" and failed) for name in CHOICES)


FILTERS = [Filter(**given) for given in ({}, {"run": "run-1"}, {"stage": "harvest@1"}, {"round": 10}, {"policy": "random"}, {"stratum": "cool"}, {"task": "task-3"}, {"task": "task"}, {"task": "none"})]
FILTERS += [Filter(outcome=one, policy=policy) for one, policy in product(("solved", "failed", "unsolved", "truncated", "error"), (None, "actor"))]
FILTERS += [Filter(run="run-2", stage="harvest@1", outcome="failed", policy="actor", stratum="heat", task="task-0"), Filter(policy="nobody")]


def test_a_list_holds_what_its_filters_say_and_counts_it(played: tuple[Engine, str, list[dict]]) -> None:
    engine, checkout, everything = played
    for wanted in FILTERS:
        expected = [row["episode_id"] for row in everything if passes(row, wanted)]
        found = list_episodes(engine, checkout, wanted, size=1000)
        assert sorted(row["episode_id"] for row in found.rows) == sorted(expected) and found.total == len(expected), wanted
        for name in CHOICES:
            free = Filter(**{key: value for key, value in vars(wanted).items() if key != name})
            counts = {value: sum(passes(row, Filter(**(vars(free) | {name: value}))) for row in everything) for value in found.choices[name] if value is not None}
            assert {value: n for value, n in found.choices[name].items() if value is not None} == counts, (wanted, name)


def test_pages_go_through_the_list_once_and_back(played: tuple[Engine, str, list[dict]]) -> None:
    engine, checkout, everything = played
    for wanted in (Filter(), Filter(policy="actor"), Filter(task="task-3")):
        whole = [row["episode_id"] for row in list_episodes(engine, checkout, wanted, size=1000).rows]
        page = list_episodes(engine, checkout, wanted, size=4)
        assert page.before is None
        seen, pages = [], []
        while True:
            seen += [row["episode_id"] for row in page.rows]
            pages.append(page)
            if page.after is None:
                break
            page = list_episodes(engine, checkout, wanted, after=page.after, size=4)
        assert seen == whole and len(whole) == sum(passes(row, wanted) for row in everything)
        for before in reversed(pages[:-1]):
            page = list_episodes(engine, checkout, wanted, before=page.before, size=4)
            assert page.rows == before.rows
        assert page.before is None


def test_the_newest_run_comes_first_and_in_it_the_last_stage(played: tuple[Engine, str, list[dict]]) -> None:
    engine, checkout, _ = played
    order = list(dict.fromkeys((row["run"], row["stage"]) for row in list_episodes(engine, checkout, Filter(), size=1000).rows))
    assert order == [(run, stage) for run in ("run-2", "run-1") for stage in ("harvest@10", "harvest@1", "demonstrations")]


def test_counts_follow_a_file_that_changed(played: tuple[Engine, str, list[dict]], tmp_path: Path) -> None:
    engine, checkout, everything = played
    assert list_episodes(engine, checkout, Filter()).total == len(everything)
    write_table(tmp_path / "runs/run-1/data/demonstrations/episodes.parquet", "episodes", table_of("episodes", rows("other", 2, 0)))
    index_run(engine, tmp_path / "runs/run-1", "run-1", tmp_path)
    assert list_episodes(engine, checkout, Filter()).total == len(everything) - 9
    assert list_episodes(engine, "another", Filter()).total == 0


def test_an_episode_is_found_by_its_id_or_the_beginning_of_one(played: tuple[Engine, str, list[dict]]) -> None:
    engine, checkout, _ = played
    assert places_of(engine, checkout, "run-1-10-004") == [("run-1-10-004", "run-1", "data/rounds/10/harvest/episodes.parquet")]
    assert [place[0] for place in places_of(engine, checkout, "run-2-10")] == [f"run-2-10-{i:03d}" for i in range(5)]
    assert places_of(engine, checkout, "'; --") == [] and places_of(engine, "another", "run-1-10-004") == []
