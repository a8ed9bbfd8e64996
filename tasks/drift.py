"""What a round's version does: its evaluation's rows are checked, and compared with the version before and with the warm start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.envs.benchmarks import benchmark_class
from ratchet.episodes.files import read_table
from ratchet.evaluation.panels import read_panel
from ratchet.files import read_json, replacing, write_bytes, write_json
from tasks.check import panel_tasks
from tasks.common import Stage, main, say, skipped
from tasks.ratios import log_ratios

if TYPE_CHECKING:
    from monitoring.drift_columns import Column, Side

WARM = "0"
CREDIT = "credit.parquet"
SIDECARS = {"meter": "online/meter.parquet", "critic": "online/critic.parquet", "buffer": "critic/critic.parquet"}


def run(stage: Stage) -> None:
    """Writes data/rounds/K/drift: evaluation.json and buffer.json (verdicts of the suite), drift.json, drift.html, credit.parquet."""
    assert stage.key is not None
    base = stage.path(f"data/rounds/{stage.key}")
    if reason := skipped(base / "evaluation"):
        return stage.skip(reason)
    out = stage.out(f"data/rounds/{stage.key}/drift")
    write_json(out / "evaluation.json", evaluation_verdict(stage))
    if (base / "buffer" / "episodes.parquet").is_file():
        write_json(out / "buffer.json", buffer_verdict(stage, base / "buffer"))
    result = _compared(stage, out) if stage.settings.drift.enabled else nothing("drift.enabled is false")
    from monitoring.drift_page import drift_page

    write_json(out / "drift.json", result)
    write_bytes(out / "drift.html", drift_page(f"Round {stage.key}: drift", result).encode())
    beyond = [f"{one['name']} against {one['against']} ({one['observed']:.3g}, {one['level']})" for one in result["columns"] if one["level"] != "ok"]
    say(f"{stage.title}: {len(result['columns'])} comparisons; {'; '.join(beyond) or result['note'] or 'nothing drifted'}")
    stage.finish()


def evaluation_verdict(stage: Stage) -> dict[str, Any]:
    """The suite's verdict on what the evaluation left: episodes and steps on `confirm`, and the outcomes that a decision is made of."""
    from monitoring.quality import run_suite
    from monitoring.quality_results import Results

    folder = stage.path(f"data/rounds/{stage.key}/evaluation")
    panel = read_panel(stage.path("data/panels/confirm.json"))
    tasks = frozenset(task.task_id for task in panel.tasks)
    results = Results(read_table(folder / "confirm.parquet", "outcomes"), panel.name, panel.hash, tasks, stage.settings.evaluate.samples)
    tables = [read_table(folder / f"{kind}.parquet", kind) for kind in ("episodes", "steps")]
    limits = stage.settings.check.model_dump()
    return run_suite(*tables, None, limits=limits, panels={"confirm": set(tasks)}, replay=None, panel="confirm", results=results)


def buffer_verdict(stage: Stage, folder: Path) -> dict[str, Any]:
    """The suite's verdict on the buffer that critic and offline update learned from."""
    from monitoring.quality import run_suite

    assert stage.key is not None
    tables = [read_table(folder / f"{kind}.parquet", kind) for kind in ("episodes", "steps")]
    labels = read_table(folder / "labels.parquet", "labels") if (folder / "labels.parquet").is_file() else None
    return run_suite(*tables, labels, limits=stage.settings.check.model_dump(), panels=panel_tasks(stage), replay=None, buffer_of=int(stage.key))


def nothing(note: str) -> dict[str, Any]:
    """A comparison that was not made."""
    return {"passed": True, "status": "ok", "skipped": None, "columns": [], "references": [], "note": note}


def _compared(stage: Stage, out: Path) -> dict[str, Any]:
    from monitoring.drift import Limits, compare_sides, verdict
    from monitoring.drift_columns import COLUMNS, Side

    assert stage.key is not None
    own = stage.settings.drift.model_dump()
    limits = {name: Limits(own[name]["warn"], own[name]["fail"]) for name in COLUMNS}
    current = _side(stage, stage.key, _ratios(stage))
    findings, references = [], []
    previous = stage.settings.rounds[stage.key].prev
    for name, key in (("warm", WARM), ("previous", previous)):
        if (name == "previous" and key == WARM) or skipped(stage.path(f"data/rounds/{key}/evaluation")):
            continue
        reference = _side(stage, key)
        version = read_json(stage.path(f"data/rounds/{key}/evaluation/evaluation.json"))["version"]
        references.append({"against": name, "round": int(key), "version": version, "episodes": reference.count})
        # what tells of one side alone is told once
        asked = {column: limit for column, limit in limits.items() if name == "warm" or COLUMNS[column].kind != "ratios"}
        findings += compare_sides(reference, current, asked, name)
    credit, before = _credit(stage, out, previous)
    shared = Side(np.zeros(0, object), np.zeros(0, object), before), Side(np.zeros(0, object), np.zeros(0, object), credit)
    findings += compare_sides(*shared, {name: limits[name] for name in credit}, "previous")
    return {**verdict(findings), "references": references, "note": None if findings else "there was nothing to compare with"}


def _side(stage: Stage, key: str, ratios: dict[str, np.ndarray] | None = None) -> Side:
    from monitoring.drift_columns import side_of

    folder = stage.path(f"data/rounds/{key}/evaluation")
    tables = (read_table(folder / f"{kind}.parquet", kind) for kind in ("episodes", "steps"))
    return side_of(*tables, getattr(benchmark_class(stage.settings.env.name), "null_action", None), ratios)


def _ratios(stage: Stage) -> dict[str, np.ndarray]:
    """Log-ratios of the version against the policy that the round began with, on what that policy played in the harvest."""
    assert stage.key is not None
    settings, folder = stage.settings, stage.path(f"data/rounds/{stage.key}/harvest")
    if not settings.drift.ratio_episodes or skipped(folder):
        return {}
    episodes = read_table(folder / "episodes.parquet", "episodes", ["episode_id", "policy_id", "error"])
    mine = episodes.filter(pc.and_(pc.equal(episodes["policy_id"], settings.actor), pc.is_null(episodes["error"])))
    chosen = mine["episode_id"].slice(0, settings.drift.ratio_episodes)  # ids are hashes, in their order
    if not len(chosen):
        return {}
    steps = read_table(folder / "steps.parquet", "steps")
    steps = steps.filter(pc.is_in(steps["episode_id"], value_set=chosen.combine_chunks()))
    model = stage.path(f"models/rounds/{stage.key}/version")
    return log_ratios(model, steps, temperature=settings.harvest.temperature, budget=settings.evolve_online.batch_tokens)


def _credit(stage: Stage, out: Path, previous: str) -> tuple[dict[str, Column], dict[str, Column]]:
    """Columns of this round's credit, and of the round's before; what the next round will need of it is written."""
    from monitoring.drift_columns import Column, credit_columns

    base = stage.path(f"data/rounds/{stage.key}")
    tables = {name: pq.read_table(base / path) for name, path in SIDECARS.items() if (base / path).is_file()}
    if "buffer" in tables:
        tables["buffer"] = _own(base / "buffer", tables["buffer"])
    now = credit_columns(tables)
    before: dict[str, Column] = {}
    kept = stage.path(f"data/rounds/{previous}/drift/{CREDIT}")
    if kept.is_file():
        table = pq.read_table(kept)
        for name in table["column"].unique().to_pylist():
            own = table.filter(pc.equal(table["column"], name))
            before[name] = Column(own["value"].to_numpy().astype(float), own["owner"].to_numpy())
    if now:
        rows = {
            "column": pa.array([name for name, column in now.items() for _ in column.values], pa.string()),
            "owner": pa.array(np.concatenate([column.owner for column in now.values()]), pa.int64()),
            "value": pa.array(np.concatenate([column.values for column in now.values()]), pa.float32()),
        }
        with replacing(out / CREDIT) as part:
            pq.write_table(pa.table(rows), part, compression="zstd")
    return now, before


def _own(buffer: Path, table: pa.Table) -> pa.Table:
    """The rows of what the actor played at this round's start: how many failures, experts or older episodes a buffer has is a setting, and
    no drift."""
    from ratchet.critic.buffer import by_the_start

    own = by_the_start(read_table(buffer / "buffer.parquet", "buffer", ["episode_id", "source", "age"]).to_pylist())
    return table.filter(pc.is_in(table["episode_id"], value_set=pa.array(sorted(own), pa.string())))


if __name__ == "__main__":
    main("drift", run, "round")
