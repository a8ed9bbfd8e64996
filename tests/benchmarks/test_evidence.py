"""What the scripts of evidence share: protocols, cells and their store, statistics, pages."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.evidence import cells, run
from benchmarks.evidence.cells import Cell, Store, Warm, bits, cells_of
from benchmarks.evidence.code import meaning
from benchmarks.evidence.pages import all_runs, gates, percent, table, write_curves
from benchmarks.evidence.protocol import Protocol, merged, read_protocol
from benchmarks.evidence.run import Found, Runner
from benchmarks.evidence.statistics import Curve, curve_of, paired, reaches, spread_of, steps_ratio
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json

PROTOCOLS = sorted((Path(__file__).parents[2] / "benchmarks" / "protocols").glob("*.yaml"))
RULES: dict[str, Any] = {
    "question": "which?",
    "statistic": "the mean",
    "worlds": {"a": {"preset": "smoke", "set": {"evolve_online": {"iterations": 2}}}},
    "arms": {
        "one": {"world": "a", "seeds": 2, "label": "One", "tune": [{"evolve_online": {"lr": 0.1}}, {"evolve_online": {"lr": 0.2}}]},
        "two": {"world": "a", "seeds": 2, "label": "Two", "like": "one", "set": {"evolve_online": {"kl_weight": 0.5}}},
    },
    "quick": {"seeds": 1, "tune": 1, "set": {"env": {"max_steps": 3}}},
}


def protocol(folder: Path, quick: bool = False, **changes: Any) -> Protocol:
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump({**RULES, **changes}), encoding="utf-8")
    return read_protocol(path, quick=quick)


@pytest.mark.parametrize("path", PROTOCOLS, ids=[path.stem for path in PROTOCOLS])
@pytest.mark.parametrize("quick", [False, True])
def test_all_that_a_protocol_would_run_is_settings_that_work(path: Path, quick: bool) -> None:
    one = read_protocol(path, quick=quick)
    for arm, rules in one.rules.arms.items():
        for choice in one.rules.arms[rules.like or arm].tune or [{}]:
            (first, *_) = cells_of(one, [arm], {arm: choice})
            assert first.params["seed"] == 1 and first.params["rounds"]["1"]["prev"] == "0"
            assert first.world_params["env"] == first.params["env"]


def test_a_protocol_has_another_hash_when_anything_in_it_is_another(tmp_path: Path) -> None:
    first = protocol(tmp_path).hash
    assert first == protocol(tmp_path).hash == protocol(tmp_path, quick=True).hash
    assert first != protocol(tmp_path, statistic="the median").hash
    assert first != protocol(tmp_path, final={"panel": "confirm"}).hash


def test_arms_of_a_world_are_tuned_with_equal_budgets(tmp_path: Path) -> None:
    arms = json.loads(json.dumps(RULES["arms"]))
    arms["three"] = {"world": "a", "seeds": 2, "label": "Three", "tune": [{}]}
    with pytest.raises(RatchetError, match="unequal budgets"):
        protocol(tmp_path, arms=arms)
    arms["three"] = {"world": "b", "seeds": 2, "label": "Three"}
    with pytest.raises(RatchetError, match="no world 'b'"):
        protocol(tmp_path, arms=arms)
    with pytest.raises(RatchetError, match=r"arms\.one\.seeds"):
        protocol(tmp_path, arms={"one": {"world": "a", "seeds": 0, "label": "One"}})
    arms["three"] = {"world": "a", "seeds": 2, "label": "Three", "like": "two"}
    with pytest.raises(RatchetError, match="makes its own choice"):
        protocol(tmp_path, arms=arms)


def test_an_arm_that_is_like_another_takes_its_settings_and_its_choice(tmp_path: Path) -> None:
    one = protocol(tmp_path)
    assert one.differences("two", {"evolve_online": {"lr": 0.2}}) == {"evolve_online": {"iterations": 2, "kl_weight": 0.5, "lr": 0.2}}
    small = protocol(tmp_path, quick=True)
    assert small.differences("one", {})["env"] == {"max_steps": 3} and small.rules.arms["one"].seeds == len(small.rules.arms["one"].tune) == 1


def test_what_is_too_much_for_a_quick_run_is_left_out_of_it(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({**RULES, "quick": {"without": ["two"]}}), encoding="utf-8")
    assert list(read_protocol(path, quick=True).rules.arms) == ["one"] and list(read_protocol(path).rules.arms) == ["one", "two"]


def test_later_differences_lie_over_earlier_ones_and_change_none_of_them() -> None:
    below, above = {"a": {"b": 1, "c": [1]}, "actors": {"x": 1}}, {"a": {"b": 2}, "actors": {"y": 2}}
    assert merged(below, above) == {"a": {"b": 2, "c": [1]}, "actors": {"y": 2}}
    assert below == {"a": {"b": 1, "c": [1]}, "actors": {"x": 1}}


def test_comments_and_docstrings_are_no_other_code() -> None:
    code = 'def f(x):\n    """Says."""\n    return x + 1  # one more\n'
    assert meaning(code) == meaning("def f(x):\n\n    return (x + 1)\n") != meaning("def f(x):\n    return x + 2\n")
    assert meaning('def f():\n    """Only says."""\n') == meaning("def f():\n    pass\n")


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    one = protocol(tmp_path)
    return cells_of(one, ["one"], {"one": {"evolve_online": {"lr": 0.1}}})[0]


def result(cell: Cell, success: str = "01", **changes: Any) -> dict[str, Any]:
    curve = [{"iteration": i + 1, "success": 0.5, "env_steps": 10, "generated_tokens": 100, "grad_norm": 1.0} for i in range(4)]
    panel = {"name": cell.panel, "hash": "h" * 16, "n": len(success), "success": success.count("1") / len(success), "marks": {"solved": success}}
    return {"arm": cell.arm, "seed": cell.seed, "code": cell.code, "settings": cell.params, "curve": curve, "panel": panel, "seconds": 1.0, **changes}


def test_a_done_cell_is_found_again_also_under_another_arms_name(cell: Cell, tmp_path: Path) -> None:
    store = Store(tmp_path / "cells")
    assert store.find(cell) is None
    store.put(cell, result(cell))
    assert store.find(cell) == store.find(replace(cell, arm="another")) == result(cell)
    for other in (replace(cell, seed=2), replace(cell, panel="select"), replace(cell, differences={})):
        assert store.find(other) is None


def test_a_cell_of_other_code_or_of_settings_that_changed_is_none(cell: Cell, tmp_path: Path) -> None:
    store, loose = Store(tmp_path / "cells"), Store(tmp_path / "cells", any_code=True)
    store.put(cell, result(cell, code="0" * 12))
    assert store.find(cell) is None and loose.find(cell) is not None
    changed = json.loads(json.dumps(cell.params))
    changed["evolve_online"]["tasks"] += 1
    store.put(cell, result(cell, settings=changed))
    assert "evolve_online.tasks is 5, and now 4" in str(store.other_than(result(cell, settings=changed), cell)) and loose.find(cell) is None


def test_a_cell_that_began_from_another_warm_start_is_none_whatever_is_accepted(cell: Cell, tmp_path: Path) -> None:
    loose, bits = Store(tmp_path / "cells", any_code=True), "01" * 256
    loose.warm[cell.world_key] = Warm("h", bits)
    for panel, solved in (("h", "11" + bits[2:]), ("h", bits)):  # one of 512 otherwise is what the order of sums does
        loose.put(cell, result(cell, warm={"panel": panel, "solved": solved}))
        assert loose.find(cell) is not None
    for panel, solved in (("h", "10" * 8 + bits[16:]), ("other", bits)):
        loose.put(cell, result(cell, warm={"panel": panel, "solved": solved}))
        assert loose.find(cell) is None
    loose.put(cell, result(cell))
    assert loose.find(cell) is None, "a result that does not say what it began from"


def test_a_setting_that_is_younger_than_a_cell_does_not_matter_at_its_default(cell: Cell, tmp_path: Path) -> None:
    store, older = Store(tmp_path / "cells"), json.loads(json.dumps(cell.params))
    del older["evolve_online"]["average"]
    assert store.other_than(result(cell, settings=older), cell) is None
    del older["evolve_online"]["iterations"]  # 2 here, and that is no default
    assert "did not know evolve_online.iterations" in str(store.other_than(result(cell, settings=older), cell))


class Instant:
    """In place of a process: writes a result at once, or fails. Success is the learning rate."""

    started: list[Path] = []
    asked: list[dict[str, Any]] = []
    fails: str | None = None

    def __init__(self, folder: Path) -> None:
        asked = read_json(folder / "cell.json")
        self.returncode = 0
        Instant.started.append(folder)
        Instant.asked.append(asked)
        if self.fails and self.fails in json.dumps(asked):
            (folder / "log").write_text("first line\nerror: the disk is full\n")
            self.returncode = 2
            return
        rate = yaml.safe_load(asked["params"])["evolve_online"]["lr"]
        solved = "1" * round(10 * rate) + "0" * (10 - round(10 * rate))
        panel = {"hash": "p" * 16, "n": 10, "success": rate, "marks": {"solved": solved}, "tasks": [[f"t{i}", "s", f"c{i}"] for i in range(10)]}
        curve = [{"iteration": 1, "success": rate, "env_steps": 5, "generated_tokens": 50, "grad_norm": 1.0, "errors": 0, "forecast": 0.12345678}]
        write_json(folder / "result.json", {"curve": curve, "panels": {name: dict(panel) for name in asked["panels"]}, "seconds": 1.0})

    def poll(self) -> int:
        return self.returncode

    def terminate(self) -> None: ...

    def wait(self) -> None: ...


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Instant]:
    monkeypatch.setattr(run, "_start", Instant)
    monkeypatch.setattr(cells, "code_version", lambda *_: "c" * 12)
    monkeypatch.setattr(run, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(Instant, "started", [])
    monkeypatch.setattr(Instant, "asked", [])
    monkeypatch.setattr(Instant, "fails", None)
    return Instant


def test_each_cell_is_run_once_and_the_choice_with_most_success_is_looked_at(instant: type[Instant], tmp_path: Path) -> None:
    one, store, advanced = protocol(tmp_path), Store(tmp_path / "cells"), []

    def found() -> Found:
        return Runner(one, store, jobs=2, marks={}, advance=lambda: advanced.append(1)).run(["one", "two"])

    first = found()
    assert first.choices == {"one": {"evolve_online": {"lr": 0.2}}, "two": {"evolve_online": {"lr": 0.2}}}
    assert [entry["success"] for entry in first.tuned["one"]] == [0.1, 0.2]
    assert len(instant.started) == 1 + 2 + 4 and len(advanced) == 6  # a world, two settings tried, two arms with two seeds
    assert first.marks("two").shape == (2, 10) and first.marks("two").sum() == 4
    (kept,) = {tuple(one) for one in first.cells["one"][0]["curve"]}
    assert "errors" not in kept and first.cells["one"][0]["curve"][0]["forecast"] == 0.123457
    strata, clusters = store.panel("p" * 16)
    assert len(strata) == 10 and clusters[3] == "c3"
    assert found().cells == first.cells and len(instant.started) == 7, "nothing is run again"
    assert "| one | tuning, select | lr 0.2 | 20.0 % | chosen |" in all_runs(first)


def test_a_meter_of_another_world_is_fitted_there_with_the_arms_pool_and_the_world_is_made_and_not_played(
    instant: type[Instant], tmp_path: Path
) -> None:
    arms = {"one": {**RULES["arms"]["one"], "seeds": 1, "set": {"evolve_online": {"meter": {"enabled": True, "given": "given"}}, "harvest": {"episodes": 9}}}}
    arms["other"] = {**arms["one"], "meter_of": "b", "tune": [], "like": "one", "set": {}}
    worlds = {**RULES["worlds"], "b": {"preset": "smoke", "seed": 3, "set": {"env": {"max_steps": 5}}}}
    one = protocol(tmp_path, worlds=worlds, arms=arms)
    own, other = (cells_of(one, [arm], {arm: {}})[0] for arm in ("one", "other"))
    assert own.meter_cell is None and other.meter_cell is not None and own.key != other.key
    assert own.key == replace(own, meter_world=None).key and other.world_key == own.world_key != other.meter_cell.world_key
    there = other.meter_cell.params
    assert (there["seed"], there["env"]["max_steps"], there["harvest"]["episodes"], there["evolve_online"]["meter"]["given"]) == (3, 5, 9, None)
    Runner(one, Store(tmp_path / "cells"), jobs=1, marks={}).run(["one", "other"])
    asked = instant.asked
    assert [one["panels"] for one in asked if one["kind"] == "world"] == [["select", "test"], []]
    assert [bool(one.get("meter")) for one in asked if one["kind"] == "cell"] == [False, False, False, True]
    with pytest.raises(RatchetError, match=r"arms\.other\.meter_of: there is no world 'c'"):
        protocol(tmp_path, arms={**arms, "other": {**arms["other"], "meter_of": "c"}}, worlds=worlds)


def test_a_cell_that_was_done_when_everything_was_killed_is_kept_and_not_run_again(instant: type[Instant], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, store = protocol(tmp_path), Store(tmp_path / "cells")
    with monkeypatch.context() as killed:
        killed.setattr(Runner, "_keep", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            Runner(one, store, jobs=1, marks={}).run(["one"])
    before = len(instant.started)
    Runner(one, store, jobs=1, marks={}).run(["one"])
    assert len(instant.started) == before + 3 and len({*instant.started}) == len(instant.started)


def test_a_cell_that_fails_ends_the_run_with_its_last_words(instant: type[Instant], tmp_path: Path) -> None:
    instant.fails = "lr: 0.2"
    with pytest.raises(RatchetError, match="one, seed 101 ended with 2; the end of .*\n.*first line\nerror: the disk is full"):
        Runner(protocol(tmp_path), Store(tmp_path / "cells"), jobs=1, marks={}).run(["one"])


def test_no_difference_has_an_interval_of_nothing_and_a_constant_one_of_itself() -> None:
    a = np.random.default_rng(1).integers(0, 2, (5, 40)).astype(float)
    clusters = np.arange(40) // 4
    same = paired(a, a, clusters)
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    shifted = paired(a, a + 0.25, clusters)
    assert [shifted.mean, shifted.low, shifted.high] == pytest.approx([0.25] * 3) and shifted.by_seed == [0.25] * 5


def test_an_interval_is_as_wide_as_seeds_differ_also_with_many_tasks() -> None:
    rng, clusters = np.random.default_rng(2), np.arange(2000) // 50
    effects = np.array([0.1, -0.1, 0.1, -0.1, 0.05])
    a = np.zeros((5, 2000))
    b = (rng.random((5, 2000)) < 0.5) * 1.0 + effects[:, None] - 0.5
    found = paired(a, b, clusters)
    assert found.low < -0.05 and found.high > 0.08, "2,000 tasks do not make up for five seeds"
    assert found.figures("x") == {"x": round(found.mean, 4), "x_low": round(found.low, 4), "x_high": round(found.high, 4)}


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng, held, trials = np.random.default_rng(3), 0, 150
    for _ in range(trials):
        seeds, scenes = rng.normal(0, 0.05, (6, 1)), np.repeat(rng.normal(0, 0.05, 12), 4)
        gaps = 0.1 + seeds + scenes + rng.normal(0, 0.3, (6, 48))
        found = paired(np.zeros_like(gaps), gaps, np.arange(48) // 4, resamples=1000)
        held += found.low <= 0.1 <= found.high
    assert held / trials > 0.92


def test_one_seed_is_resampled_by_clusters_alone_and_one_of_each_says_nothing() -> None:
    gaps = np.tile([1.0, 0.0], 20)[None]
    found = paired(np.zeros_like(gaps), gaps, np.arange(40))
    assert 0.2 < found.low < found.mean == 0.5 < found.high < 0.8
    nothing = paired(np.zeros((1, 4)), np.ones((1, 4)), np.zeros(4))
    assert (nothing.low, nothing.high) == (-1, 1)


def test_a_curve_is_a_running_mean_over_seeds_against_what_was_spent() -> None:
    results = [{"curve": [{"success": s, "env_steps": 10, "generated_tokens": 7} for s in row]} for row in ([0.0, 0.3, 0.6, 0.9], [0.0, 0.5, 0.4, 0.9])]
    curve = curve_of(results)
    assert curve.env_steps.tolist() == [10, 20, 30, 40] and curve.generated_tokens[-1] == 28
    assert curve.success == pytest.approx([0.0, 0.2, 0.3, 0.6])


def test_steps_to_a_success_are_read_between_iterations() -> None:
    at, success = np.array([10.0, 20.0, 30.0]), np.array([0.2, 0.4, 0.5])
    assert reaches(at, success, 0.3) == 15 and reaches(at, success, 0.1) == 10 and reaches(at, success, 0.6) is None
    quick, slow = Curve(at, at, np.array([0.4, 0.5, 0.6])), Curve(at, at, success)
    assert steps_ratio(slow, quick) == (1.5, True)
    assert steps_ratio(quick, slow) == (1.0, False), "not reached: the whole budget counts"


def test_the_spread_of_gradients_is_of_the_longest_over_the_usual() -> None:
    assert spread_of([1.0] * 100) == 1.0 and spread_of([1.0] * 90 + [8.0] * 10) == 8.0 and spread_of([0.0, 0.0, 1.0]) is None


def test_pages_are_tables_and_curves_that_stand_alone(cell: Cell, tmp_path: Path) -> None:
    assert table(["a", "b"], [[1, "x"]]) == "| a | b |\n| --- | --- |\n| 1 | x |\n" and percent(0.456) == "45.6 %"
    found = Found(protocol(tmp_path), cells={"one": [result(cell)], "two": [result(cell)]})
    files = write_curves(tmp_path, "name", found, ["one", "two"], "Title")
    assert [file.name for file in files] == ["name-env-steps.svg", "name-generated-tokens.svg"]
    for file in files:
        text = file.read_text()
        assert 'xmlns="http://www.w3.org/2000/svg"' in text and "One" in text and "Two" in text and text.count("<polyline") == 2


def test_bits_are_outcomes_in_their_order() -> None:
    assert bits("0110").tolist() == [0, 1, 1, 0]


def test_a_refusal_is_an_end_without_anything_sent() -> None:
    from benchmarks.evidence.marks import refused
    from ratchet.episodes.files import table_of

    played = {"a": ["finish"], "b": ["go den", "send cup", "finish"], "c": ["send cup", "finish"], "d": ["wait"]}
    episodes = table_of("episodes", [{"episode_id": name} for name in played])
    steps = [
        {"episode_id": name, "t": t, "action": action, "action_type": action.split()[0], "valid": name != "c" or action == "finish"}
        for name, actions in played.items()
        for t, action in enumerate(actions)
    ]
    assert refused(episodes, table_of("steps", steps)) == {"a": True, "b": False, "c": True, "d": False}


@pytest.mark.parametrize("script", ["alfworld_methods", "proving_ground"])
def test_a_script_says_what_it_does_and_refuses_an_arm_that_is_none(script: str) -> None:
    command = [sys.executable, f"benchmarks/{script}.py"]
    told = subprocess.run([*command, "--only", "nobody"], capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert told.returncode == 2 and "no such arm; they are grpo, cope" in told.stderr


def test_a_cell_is_learned_and_played_by_the_stages_and_goes_on_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.evidence import child, workspaces

    monkeypatch.setattr(child, "die_with_parent", lambda: None)
    one = read_protocol(Path(__file__).parents[2] / "benchmarks" / "protocols" / "proving_ground.yaml", quick=True)
    tiny = {"prepare": {"games": {"train": 60, "select": 4, "test": 8}}, "demonstrate": {"episodes": 60}, "actors": {"actor": {
        "layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "mlp": 32, "tokens": 3000}, "small": {
        "layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "mlp": 32, "tokens": 3000}}, "env": {"max_steps": 4, "options": {"idle_share": 1.0}}}
    cell = replace(cells_of(one, ["scarce_replay"], {"scarce_replay": one.rules.arms["cope"].tune[0]})[0])
    cell = replace(cell, differences=merged(cell.differences, tiny))
    marks, world = {"refused": "benchmarks.evidence.marks:refused"}, tmp_path / "world"
    write_json(world / "cell.json", {"kind": "world", "world": str(world), "params": run.dump_params(cell.world_params), "actor": "actor", "panels": ["test"], "marks": marks})
    assert child.main(world) == 0 and read_json(world / "result.json")["panels"]["test"]["n"] == 8

    def asked(name: str) -> Path:
        write_json(tmp_path / name / "cell.json", {"kind": "cell", "world": str(world), "params": run.dump_params(cell.params), "panels": ["test"], "marks": marks})
        return tmp_path / name

    assert child.main(asked("whole")) == 0
    with monkeypatch.context() as killed:
        killed.setattr(child, "play", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            child.main(asked("killed"))
    with monkeypatch.context() as learned:
        learned.setattr(workspaces, "perform", lambda stage, _: pytest.fail(f"{stage.title} is run again"))
        assert child.main(asked("killed")) == 0
    first, again = (read_json(tmp_path / name / "result.json") for name in ("whole", "killed"))
    assert {**first, "seconds": 0} == {**again, "seconds": 0}
    panel = first["panels"]["test"]
    assert len(panel["marks"]["solved"]) == len(panel["marks"]["refused"]) == len(panel["tasks"]) == 8
    assert len(first["curve"]) == 2 and all("replayed_groups" in point and "forecast_targets" in point for point in first["curve"])


def test_rounds_tell_what_the_gate_said_of_each_rounds_meter(tmp_path: Path) -> None:
    """Without it nobody sees that a loop went on without its meter."""
    from benchmarks.evidence import rounds, workspaces

    one = read_protocol(Path(__file__).parents[2] / "benchmarks" / "protocols" / "meter_methods.yaml", quick=True)
    sizes = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "mlp": 32, "tokens": 3000}
    tiny = {"prepare": {"games": {"train": 60, "select": 4, "test": 8}}, "demonstrate": {"episodes": 60}, "actors": {"actor": sizes, "small": sizes}}
    [cell] = cells_of(one, ["head"], {"head": {}})
    tiny["harvest"] = {"pool": [{"policy": "expert", "share": 0.5}, {"policy": "actor", "share": 0.5}]}
    shut = {"rounds": {"1": {"prev": "0", "set": {"fit_meter": {"gate": {"enforce": True}}}}, "2": {"prev": "1"}}}
    cell = replace(cell, differences=merged(cell.differences, tiny, shut, {"evolve_online": {"iterations": 1, "keep_every": 1}}))
    workspaces.make_world(tmp_path / "worlds" / "one", run.dump_params(cell.world_params))
    folder = tmp_path / "cells" / "one"
    workspaces.begin_cell(folder, tmp_path / "worlds" / "one", run.dump_params(cell.params))
    _, curve = rounds.learn_rounds(folder)
    gates_of = [read_json(folder / "data" / "rounds" / key / "meter" / "gate.json") for key in "12"]
    assert [point["meter_gate_accuracy"] for point in curve] == [one["gate"]["accuracy"] for one in gates_of]
    assert [point["meter_gate_off"] for point in curve] == [1, 0], "enforced in round 1 alone, and so small a one does not pass"
    found = Found(one, cells={"head": [{"seed": 1, "curve": curve}]})
    [told] = gates(found)
    assert "meter with a head (smoke run), seed 1, round 1 | shut" in told and told.count("round 2") == 1


def test_a_meter_that_another_world_fitted_is_judged_on_the_own_pool_and_used(tmp_path: Path) -> None:
    from benchmarks.evidence import meters, workspaces

    one = read_protocol(Path(__file__).parents[2] / "benchmarks" / "protocols" / "meter_methods.yaml", quick=True)
    sizes = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "mlp": 32, "tokens": 3000}
    tiny = {"prepare": {"games": {"train": 60, "select": 4, "test": 8}}, "demonstrate": {"episodes": 60}, "actors": {"actor": sizes, "small": sizes}}
    [cell] = cells_of(one, ["other_rooms"], {"other_rooms": {}})
    assert cell.meter_cell is not None
    cell = replace(cell, differences=merged(cell.differences, tiny, {"evolve_online": {"iterations": 1, "keep_every": 1}}))
    there = replace(cell.meter_cell, differences=merged(cell.meter_cell.differences, tiny))
    for name, made in (("here", cell), ("there", there)):
        workspaces.make_world(tmp_path / "worlds" / name, run.dump_params(made.world_params))
    meter = {"world": str(tmp_path / "worlds" / "there"), "params": there.params}
    folder = tmp_path / "cells" / "one"
    workspaces.begin_cell(folder, tmp_path / "worlds" / "here", run.dump_params(cell.params), meter)
    [fitted], [judged] = ([home for home in (tmp_path / "meters").glob("*/") if (home / meters.GIVEN).is_symlink() is given] for given in (False, True))
    card = read_json(folder / meters.METER / "meter.json")
    assert card == read_json(fitted / meters.METER / "meter.json"), "it is the other world's"
    assert (judged / "data/rounds/1/harvest/episodes.parquet").is_file() and meters.gate_of(folder)["meter_gate_accuracy"] >= 0
    workspaces.learn(folder)
