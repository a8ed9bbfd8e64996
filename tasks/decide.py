"""The ratchet: the round's version becomes champion only where it is measurably better; otherwise the champion stays."""

from __future__ import annotations

import shutil
from typing import Any

from ratchet.episodes.files import read_table, write_table
from ratchet.evaluation.compare import compare
from ratchet.evaluation.panels import read_panel
from ratchet.evaluation.promotion import decide, spending
from ratchet.evaluation.summary import selected
from ratchet.files import read_json, write_json
from tasks.common import Stage, main, say, skipped


def run(stage: Stage) -> None:
    """Writes data/rounds/K/decision, models/rounds/K/champion and models/rounds/K/start."""
    assert stage.key is not None
    previous = stage.settings.rounds[stage.key].prev
    before = read_json(stage.path(f"data/rounds/{previous}/decision/decision.json"))
    if before["stop"] is not None:
        return _write(stage, _stopped(stage, before, before["stop"], f"stopped in round {before['round']}"), promoted=False)
    harvest, evaluation_checks, waived = _checks(stage)
    failed = [c["name"] for verdict in (harvest, evaluation_checks) if verdict for c in verdict["checks"] if _fails(c)]
    checks = {"checks": evaluation_checks, "waived": waived}
    if failed:
        return _write(stage, {**_stopped(stage, before, f"failed checks: {', '.join(failed)}", "a failed check stops the run"), **checks}, promoted=False)
    if reason := skipped(stage.path(f"data/rounds/{stage.key}/evaluation")):
        return _write(stage, {**_stopped(stage, before, reason, "nothing was evaluated"), **checks}, promoted=False)
    decision = {**_decision(stage, before), **checks}
    _write(stage, decision, promoted=decision["promoted"])


def _fails(check: dict[str, Any]) -> bool:
    return check["severity"] == "fail" and not check["passed"] and not check.get("waived")


def _checks(stage: Stage) -> tuple[dict[str, Any] | None, dict[str, Any] | None, list[dict[str, str]]]:
    """Verdicts on the harvest and on the evaluation's own rows, waivers applied."""
    from monitoring.quality import apply_waivers, read_waivers, run_suite

    waivers = read_waivers(stage.path("waivers.yaml"))
    base = stage.path(f"data/rounds/{stage.key}")
    harvest = None if skipped(base / "check") else apply_waivers(read_json(base / "check" / "verdict.json"), waivers)
    evaluated = None
    if not skipped(base / "evaluation"):
        panels = {"confirm": {task.task_id for task in read_panel(stage.path("data/panels/confirm.json")).tasks}}
        tables = (read_table(base / "evaluation" / f"{kind}.parquet", kind) for kind in ("episodes", "steps"))
        verdict = run_suite(*tables, None, limits=stage.settings.check.model_dump(), panels=panels, replay=None, panel="confirm")
        evaluated = apply_waivers(verdict, waivers)
    used = {c["name"] for verdict in (harvest, evaluated) if verdict for c in verdict["checks"] if c.get("waived")}
    return harvest, evaluated, [one for one in waivers if one["check"] in used]


def _decision(stage: Stage, before: dict[str, Any]) -> dict[str, Any]:
    assert stage.key is not None
    settings, own = stage.settings, stage.settings.decide
    evaluation = read_json(stage.path(f"data/rounds/{stage.key}/evaluation/evaluation.json"))
    alpha = spending(own.alpha, len(settings.rounds), int(stage.key))
    comparison = compare(
        read_table(stage.path(f"data/rounds/{settings.rounds[stage.key].prev}/decision/champion.parquet"), "outcomes"),
        read_table(stage.path(f"data/rounds/{stage.key}/evaluation/confirm.parquet"), "outcomes"),
        level=1 - 2 * alpha,
        resamples=own.resamples,
    )
    verdict = decide(comparison, max_stratum_loss=own.max_stratum_loss)
    candidate = {"version": evaluation["version"], "round": int(stage.key)}
    model = f"models/rounds/{stage.key}/champion"
    found = selected(evaluation)
    champion = {**candidate, "model": model, "select": found} if verdict.promoted else {**before["champion"], "model": model}
    return {
        "round": int(stage.key),
        "line": settings.line,
        "champion": champion,
        "candidate": candidate,
        "next_start": _next_start(settings.loop.start_from, found, champion["select"]),
        "promoted": verdict.promoted,
        "event": verdict.event,
        "stop": None,
        "reasons": list(verdict.reasons),
        "comparison": comparison,
        "alpha": alpha,
    }


def _next_start(start_from: str, candidate: float, champion: float) -> str:
    """`champion` or `last`, from successes on `select`: `confirm`, which decides promotion, chooses nothing that is trained."""
    if start_from == "better":
        return "last" if candidate > champion else "champion"
    return start_from


def _stopped(stage: Stage, before: dict[str, Any], stop: str, reason: str) -> dict[str, Any]:
    assert stage.key is not None
    return {
        "round": int(stage.key),
        "line": stage.settings.line,
        "champion": {**before["champion"], "model": f"models/rounds/{stage.key}/champion"},
        "candidate": None,
        "next_start": "champion",
        "promoted": False,
        "event": "run.stopped",
        "stop": stop,
        "reasons": [reason],
        "comparison": None,
        "alpha": None,
        "checks": None,
        "waived": [],
    }


def _write(stage: Stage, decision: dict[str, Any], *, promoted: bool) -> None:
    """The decision, the champion's outcomes and the two model folders that the next round needs."""
    assert stage.key is not None
    previous = stage.settings.rounds[stage.key].prev
    version = stage.path(f"models/rounds/{stage.key}/version")
    champion = version if promoted else stage.path(f"models/rounds/{previous}/champion")
    start = version if decision["next_start"] == "last" and skipped(version) is None else champion
    out = stage.out(f"data/rounds/{stage.key}/decision")
    write_json(out / "decision.json", decision)
    source = f"data/rounds/{stage.key}/evaluation/confirm.parquet" if promoted else f"data/rounds/{previous}/decision/champion.parquet"
    write_table(out / "champion.parquet", "outcomes", read_table(stage.path(source), "outcomes"))
    for name, folder in (("champion", champion), ("start", start)):
        shutil.copytree(folder, stage.out(f"models/rounds/{stage.key}/{name}"), dirs_exist_ok=True)
    stage.metrics(decision)
    say(f"{stage.title}: {decision['event']}; {'; '.join(decision['reasons'])}")
    stage.finish()


if __name__ == "__main__":
    main("decide", run, "round")
