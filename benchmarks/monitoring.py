"""What watching a run costs, what it catches, and how often it cries wolf.

    python -m benchmarks.monitoring
    python -m benchmarks.monitoring --quick        # that it works; its numbers mean nothing

Rounds are those of the proving ground, through the real stages. They are kept in `--folder`, and an interrupted benchmark goes on.

Figures: checks_100k_steps_s and drift_2x10k_episodes_s (without imports, which are *_import_s, lean as stages load them and whole);
clean_rounds with a frozen actor whose evaluations are sampled, and false_gates in them (clean_gains_beyond_chance says how many of their
gains chance alone put beyond the spent error: the weights are the same, so nothing is decided by it); learning_rounds and the share of them with a
warning; planted_faults and planted_faults_caught, each by its name; false_promotions_per_20_rounds and false_alarms_per_20_rounds by
simulation; page_*, index_* and alert_* from benchmarks/monitoring_page.py and monitoring_alerts.py. Beside them, as `curves`: how often a
fault of a size is seen.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from benchmarks import common, monitoring_faults as faults, monitoring_rounds as rounds  # noqa: E402
from monitoring.drift import Limits, compare_sides, verdict  # noqa: E402
from monitoring.drift_columns import COLUMNS, Column, Side, side_of  # noqa: E402
from monitoring.drift_methods import stattests  # noqa: E402
from monitoring.imports import great_expectations  # noqa: E402
from monitoring.quality import run_suite  # noqa: E402
from monitoring.regression_simulation import World, simulate  # noqa: E402
from ratchet.episodes.files import read_table  # noqa: E402
from ratchet.files import read_json, write_json  # noqa: E402
from ratchet.settings import Settings, load  # noqa: E402

PACKAGES = ("ratchet-agents", "great-expectations", "evidently", "pandas", "pyarrow", "scipy", "torch")
PARTS = ("monitoring_page", "monitoring_alerts")
IMPORTS = {
    "great_expectations_import_s": "from monitoring.imports import great_expectations; great_expectations()",
    "evidently_import_s": "from monitoring.drift_methods import stattests; stattests()",
    "great_expectations_whole_import_s": "import great_expectations",
    "evidently_whole_import_s": "import evidently",
}
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)  # of the episodes that a fault is planted in
BATCH = 5  # runs
GAINS = (-0.2, -0.15, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.15, 0.2)


def imports(repeats: int) -> dict[str, float]:
    """Processor seconds of each import in a process of its own: the least of `repeats`, so that a busy machine says little."""
    found = {}
    for name, code in IMPORTS.items():
        timed = f"import time; began = time.process_time(); {code}; print(time.process_time() - began)"
        times = [float(subprocess.run([sys.executable, "-c", timed], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()[-1])
                 for _ in range(repeats)]  # fmt: skip
        found[name] = round(min(times), 2)
    return found


def again(kind: str, table: pa.Table, times: int) -> pa.Table:
    """The rows `times` over, as rows of other episodes of other tasks."""

    def renamed(number: int) -> pa.Table:
        other = table
        for name in {"episodes": ("episode_id", "task_id", "group_id")}.get(kind, ("episode_id",)):
            values = pa.array([None if one is None else f"{number}-{one}" for one in table[name].to_pylist()], pa.string())
            other = other.set_column(other.schema.get_field_index(name), name, values)
        return other

    return pa.concat_tables([renamed(number) for number in range(times)]).combine_chunks()


def checks_speed(workspace: Path, settings: Settings, steps_wanted: int) -> dict[str, float]:
    """Seconds of the suite on a harvest of `steps_wanted` steps, labels, panels and a profile to compare with included."""
    from monitoring.quality_results import profile

    base = workspace / "data" / "rounds" / "1"
    tables = {kind: read_table(base / path, kind) for kind, path in (("episodes", "harvest/episodes.parquet"), ("steps", "harvest/steps.parquet"),
                                                                  ("labels", "labels/labels.parquet"))}  # fmt: skip
    times = -(-steps_wanted // tables["steps"].num_rows)
    many = {kind: again(kind, table, times) for kind, table in tables.items()}
    panels = {"train": set(many["episodes"]["task_id"].to_pylist()), "confirm": {"another"}}
    run_suite(*tables.values(), limits={}, panels=None, replay=None)  # what is loaded late
    began = time.perf_counter()
    accepted = profile(many["episodes"], many["steps"])
    limits = settings.check.model_dump()
    found = run_suite(*many.values(), limits=limits, panels=panels, replay={"replayed": 1, "mismatched": 0, "rows": []}, accepted=accepted)
    seconds = time.perf_counter() - began
    assert len(found["checks"]) > 50
    return {"checks_100k_steps_s": round(seconds, 2), "checks_steps": many["steps"].num_rows}


def side(workspace: Path, k: int, times: int = 1) -> Side:
    folder = workspace / "data" / "rounds" / str(k) / "evaluation"
    return side_of(*(again(kind, read_table(folder / f"{kind}.parquet", kind), times) for kind in ("episodes", "steps")))


def limits_of(settings: Settings) -> dict[str, Limits]:
    own = settings.drift.model_dump()
    return {name: Limits(own[name]["warn"], own[name]["fail"]) for name in COLUMNS}


def drift_speed(workspace: Path, settings: Settings, episodes: int) -> dict[str, float]:
    """Seconds of reading both sides off their tables and comparing them, every column judged against chance as well."""
    folder = workspace / "data" / "rounds"
    found, tables = 0, []
    for k in (0, 1):
        one = [read_table(folder / str(k) / "evaluation" / f"{kind}.parquet", kind) for kind in ("episodes", "steps")]
        times = -(-episodes // one[0].num_rows)
        tables.append([again(kind, table, times) for kind, table in zip(("episodes", "steps"), one, strict=True)])
    everything = {name: Limits(0.0 if COLUMNS[name].higher else 1.0, None) for name in COLUMNS}  # so that chance is drawn for all
    began = time.perf_counter()
    findings = compare_sides(side_of(*tables[0]), side_of(*tables[1]), everything, "warm")
    verdict(findings)
    seconds = time.perf_counter() - began
    found = tables[0][0].num_rows
    return {"drift_2x10k_episodes_s": round(seconds, 2), "drift_episodes": found}


def clean(folder: Path, quick: bool, count: int) -> tuple[Path, dict[str, float], dict[str, Any]]:
    """Rounds of a frozen actor: nothing is wrong, nothing changes but by chance."""
    workspace = rounds.lay(folder / "frozen", quick, count, *rounds.FROZEN)
    played = rounds.rounds_of(workspace, count)
    false = [f"round {k}: {', '.join([*one.failed_checks, *one.failed]) or one.event}" for k, one in enumerate(played, 1) if rounds.is_false_gate(one)]
    warned = Counter(name for one in played for name in one.warned)
    found = {
        "clean_rounds": len(played),
        "false_gates": len(false),
        "clean_rounds_warned": sum(bool(one.warned) for one in played),
        "clean_gains_beyond_chance": sum(one.beyond_chance for one in played),
    }
    return workspace, found, {"false_gates": false, "clean_warnings": dict(sorted(warned.items()))}


def learning(folder: Path, quick: bool, count: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Rounds that learn: how often something is said about them."""
    workspace = rounds.lay(folder / "learning", quick, count, *rounds.LEARNING)
    played = rounds.rounds_of(workspace, count)
    warned = Counter(name for one in played for name in one.warned)
    found = {
        "learning_rounds": len(played),
        "learning_alarm_rate": round(float(np.mean([bool(one.warned or one.failed or one.failed_checks) for one in played])), 3),
        "learning_failed": sum(bool(one.failed or one.failed_checks) for one in played),
        "learning_promoted": sum(one.event == "model.promoted" for one in played),
    }
    return found, {"learning_warnings": dict(sorted(warned.items())), "learning_events": [one.event for one in played]}


def drift_curve(workspace: Path, settings: Settings, count: int) -> dict[str, dict[str, float]]:
    """Column → share of the episodes with the fault → how often it was seen, over rounds of the frozen actor."""
    changes: dict[str, Any] = {
        "action_types": lambda values: np.full(len(values), "look", object),
        "episode_length": lambda values: 2 * values,
        "tokens_per_step": lambda values: 2 * values,
        "refusal_share": lambda values: np.ones(len(values)),
    }
    limits, reference = limits_of(settings), side(workspace, 0)
    seen: dict[str, dict[str, float]] = {name: {} for name in changes}
    for share in (0.0, *SHARES):
        caught: Counter[str] = Counter()
        for k in range(1, count + 1):
            own = side(workspace, k)
            hit = np.random.default_rng(k).random(own.count) < share
            columns = dict(own.columns)
            for name, change in changes.items():
                column = own.columns[name]
                columns[name] = Column(np.where(hit[column.owner], change(column.values), column.values), column.owner)
            asked = {name: limits[name] for name in changes}
            caught.update(one["column"] for one in compare_sides(reference, Side(own.tasks, own.strata, columns), asked, "warm") if one["level"] != "ok")
        for name in changes:
            seen[name][f"{share:g}"] = round(caught[name] / count, 3)
    return seen


def errors(folder: Path, runs: int, curve_runs: int, world: World) -> tuple[dict[str, float], dict[str, Any]]:
    """False promotions and alarms over 20 rounds without change, and how often a change of a size is seen by one of 20 rounds. What was
    simulated is kept, a batch of BATCH runs each."""
    path = folder / "simulated.json"
    known: dict[str, list[float]] = read_json(path) if path.is_file() else {}

    def played(gain: float, count: int) -> np.ndarray:
        """(promotions, alarms) a run of 20 rounds, over `count` runs."""
        batches = []
        for seed in range(-(-count // BATCH)):
            key = f"{world} gain={gain:g} batch={seed}"
            if key not in known:
                found = simulate(20, BATCH, gain=gain, world=world, seed=1000 + seed)
                known[key] = [float(found.promotions), float(found.alarms)]
                write_json(path, known)
            batches.append(known[key])
        return np.mean(batches, axis=0)

    promotions, alarms = played(0.0, runs)
    seen = {f"{gain:+g}": played(gain, curve_runs) / 20 for gain in GAINS}
    figures = {
        "false_promotions_per_20_rounds": round(float(promotions), 4),
        "false_alarms_per_20_rounds": round(float(alarms), 4),
        "simulated_runs": -(-runs // BATCH) * BATCH,
    }
    return figures, {"regression": {gain: {"promoted": round(float(p), 3), "regression": round(float(a), 3)} for gain, (p, a) in seen.items()}}


def planted(workspace: Path, settings: Settings) -> tuple[dict[str, float], dict[str, Any]]:
    found = faults.data_faults(workspace, settings.check.model_dump())
    found |= faults.drift_faults(side(workspace, 0), side(workspace, 1), limits_of(settings))
    found |= faults.regression_faults()
    return {"planted_faults": len(found), "planted_faults_caught": sum(found.values())}, {"missed_faults": [name for name, caught in found.items() if not caught]}


def others(quick: bool) -> dict[str, float]:
    """Figures of the page and of alerts, from modules of their own."""
    found: dict[str, float] = {}
    for name in PARTS:
        if importlib.util.find_spec(f"benchmarks.{name}") is not None:
            found |= importlib.import_module(f"benchmarks.{name}").figures(quick)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the result goes (default: benchmarks/results/monitoring.json; with --quick nowhere)")
    parser.add_argument("--quick", action="store_true", help="small everything: that it works")
    parser.add_argument("--folder", type=Path, help="where rounds are kept (default: .ratchet/benchmarks/monitoring)")
    parser.add_argument("--without", nargs="*", default=[], choices=("learning", "others"), help="parts to leave out")
    given = parser.parse_args()
    before = common.machine()
    folder = given.folder or ROOT / ".ratchet" / "benchmarks" / ("monitoring-quick" if given.quick else "monitoring")
    great_expectations()
    stattests()
    workspace, found, beside = clean(folder, given.quick, 2 if given.quick else 20)
    settings = load(workspace / "params.yaml")
    figures: dict[str, Any] = dict(found)
    for more, notes in (
        (imports(1 if given.quick else 3), {}),
        (checks_speed(workspace, settings, 5_000 if given.quick else 100_000), {}),
        (drift_speed(workspace, settings, 500 if given.quick else 10_000), {}),
        planted(workspace, settings),
        errors(folder, *((BATCH, 1, World(tasks=120, resamples=200)) if given.quick else (200, BATCH, World()))),
        ({}, {"drift": drift_curve(workspace, settings, 2 if given.quick else 20)}),
        ({}, {}) if "learning" in given.without else learning(folder, given.quick, 2 if given.quick else 20),
        ({} if "others" in given.without else others(given.quick), {}),
    ):
        figures |= more
        beside |= notes
    for name, value in [*figures.items(), *beside.items()]:
        print(f"{name:36} {value}")
    path = given.json or (None if given.quick else ROOT / "benchmarks" / "results" / "monitoring.json")
    if path is not None:
        command = f"python -m benchmarks.monitoring{' --quick' if given.quick else ''}"
        common.write(path, figures, command, PACKAGES, before, curves={name: beside.pop(name) for name in ("drift", "regression")}, notes=beside)


if __name__ == "__main__":
    main()
