"""The ratchet: the round's version becomes champion only where it is measurably better; otherwise the champion stays."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

from ratchet.episodes.files import read_table, write_table
from ratchet.evaluation.compare import compare
from ratchet.evaluation.promotion import decide, kept_by_drift, spending
from ratchet.evaluation.stopping import kept_by_select
from ratchet.evaluation.summary import selected
from ratchet.files import read_json, write_json
from tasks.common import Stage, main, say, skipped
from tasks.stopping import after_round


def run(stage: Stage) -> None:
    """Writes data/rounds/K/decision, models/rounds/K/champion and models/rounds/K/start."""
    assert stage.key is not None
    previous = stage.settings.rounds[stage.key].prev
    before = read_json(stage.path(f"data/rounds/{previous}/decision/decision.json"))
    if before["stop"] is not None:
        return _write(stage, _stopped(stage, before, before["stop"], f"stopped in round {before['round']}"), promoted=False)
    found = _found(stage)
    told = {"checks": found.checks, "waived": found.waived}
    if found.failed:
        reason = f"failed checks: {', '.join(found.failed)}"
        return _write(stage, {**_stopped(stage, before, reason, "a failed check stops the run"), **told}, promoted=False)
    if reason := skipped(stage.path(f"data/rounds/{stage.key}/evaluation")):
        return _write(stage, {**_stopped(stage, before, reason, "nothing was evaluated"), **told}, promoted=False)
    decision = {**_decision(stage, before, found), **told}
    _write(stage, decision, promoted=decision["promoted"])


@dataclass(frozen=True)
class Found:
    """What was found before the decision, waivers applied."""

    checks: dict[str, Any] | None  # the verdict on what was evaluated; failures of the buffer's beside it
    failed: list[str]  # checks that stop the run
    drift: dict[str, Any]  # {"status", "failed": columns that keep the version from being promoted}
    waived: list[dict[str, str]]


def _found(stage: Stage) -> Found:
    """The verdicts on harvest, buffer and evaluation, and the drift, as `check` and `drift` left them."""
    from monitoring.waivers import apply_waivers, fails, read_waivers

    waivers = read_waivers(stage.path("waivers.yaml"))
    base = stage.path(f"data/rounds/{stage.key}")
    verdicts = {
        name: apply_waivers(read_json(path), waivers)
        for name, path in (("harvest", base / "check/verdict.json"), ("evaluation", base / "drift/evaluation.json"), ("buffer", base / "drift/buffer.json"))
        if path.is_file()
    }
    failed = [one["name"] for verdict in verdicts.values() for one in verdict["checks"] if fails(one)]
    checks = verdicts.get("evaluation")
    if checks is not None and "buffer" in verdicts:
        bad = [{**one, "detail": f"buffer: {one['detail']}"} for one in verdicts["buffer"]["checks"] if not one["passed"]]
        checks = {**checks, "passed": checks["passed"] and not any(map(fails, bad)), "checks": [*checks["checks"], *bad]}
    used = {one["name"] for verdict in verdicts.values() for one in verdict["checks"] if one.get("waived")}
    path = base / "drift/drift.json"
    drift = read_json(path) if path.is_file() else {"status": "ok", "columns": []}
    beyond = sorted({one["name"] for one in drift["columns"] if one["level"] == "fail"})
    known = {one["check"] for one in waivers}
    used |= set(beyond) & known
    told = {"status": drift["status"], "failed": [name for name in beyond if name not in known]}
    return Found(checks, failed, told, [one for one in waivers if one["check"] in used])


def _decision(stage: Stage, before: dict[str, Any], found: Found) -> dict[str, Any]:
    from monitoring.regression import judge

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
    verdict = kept_by_drift(decide(comparison, max_stratum_loss=own.max_stratum_loss), found.drift["failed"])
    success, stopping = selected(evaluation), after_round(stage, before)
    if stopping is not None:
        verdict = kept_by_select(verdict, success, stopping["best_before"])
    candidate = {"version": evaluation["version"], "round": int(stage.key)}
    model = f"models/rounds/{stage.key}/champion"
    champion = {**candidate, "model": model, "select": success} if verdict.promoted else {**before["champion"], "model": model}
    return {
        "round": int(stage.key),
        "line": settings.line,
        "champion": champion,
        "candidate": candidate,
        "next_start": "champion" if found.drift["failed"] else _next_start(settings.loop.start_from, success, champion["select"]),
        "promoted": verdict.promoted,
        "event": verdict.event,
        "stop": stopping["stop"] if stopping is not None else None,
        **({"stopping": stopping} if stopping is not None else {}),
        "reasons": list(verdict.reasons),
        "comparison": comparison,
        "alpha": alpha,
        "drift": found.drift,
        "regression": judge(comparison, own.max_stratum_loss, gates=_gates(stage), of_weights=True),
    }


def _gates(stage: Stage) -> dict[str, Any]:
    """What the gates of the round's instruments said, where it had any."""
    found = {}
    for name in ("meter", "critic"):
        path = stage.path(f"data/rounds/{stage.key}/{name}/gate.json")
        found[name] = read_json(path) if path.is_file() else None
    return found


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
        "drift": None,
        "regression": None,
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
