"""From a run's workspace to what lives once in the checkout: cards, champion link, index, outbox.

Everything is derived from finished outs and written at most once, so calling it after every stage, after a kill, or twice at
the same time comes to the same registry.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ratchet.episodes.files import read_table
from ratchet.evaluation.compare import compare
from ratchet.evaluation.outcomes import only
from ratchet.store import approvals, throughput, workspace as outs
from ratchet.store.cards import (
    Card,
    add_version,
    append_check,
    append_decision,
    append_drift,
    append_evaluation,
    holds,
    read_card,
    weights_of,
)
from ratchet.store.champions import champions, set_champion
from ratchet.store.database import with_index
from ratchet.store.index import take_up
from ratchet.store.locks import locked
from ratchet.store.outbox import Event, put
from ratchet.store.queries import same_panel
from ratchet.store.statuses import renew_statuses

SPOKEN = ("model.promoted", "model.kept", "model.regression")  # decisions that go out as events
BASELINE = "model.baseline"


def sync(root: Path, workspace: Path, run_id: str) -> list[Event]:
    """Brings registry, champion link, index and outbox of the checkout `root` up to date with a workspace.

    `run_id` is the name of its folder under runs/, or `index.HERE` for the checkout itself. Returns the events that are new.
    Raises RatchetError for a damaged out or card, IndexUnreachable for a database server that stays away; what was written before stays
    and the next call goes on from there.
    """
    registry = root / "registry"
    _sync_versions(root, registry, workspace, run_id)
    renew_statuses(root)  # and after each decision: what a version was in turn is the same, whether this is called after each stage or at the end
    _sync_evaluations(root, registry, workspace, run_id)
    _sync_checks(registry, workspace, run_id)
    _sync_drift(registry, workspace, run_id)
    _sync_decisions(root, registry, workspace, run_id)
    approvals.settle(root)
    renew_statuses(root)
    throughput.take_up(root, workspace, run_id)
    new = [event for event in events_of(workspace, run_id) if put(root, event)]
    with_index(root, lambda engine: take_up(engine, root, workspace, run_id))
    return new


def events_of(workspace: Path, run_id: str) -> list[Event]:
    """What a workspace's outs have to tell, in the order of rounds; the outbox knows what was told already."""
    decided = dict(outs.decision_records(workspace))
    checked = dict(outs.verdicts(workspace))
    events = []
    drifted = {k: record for k, record in outs.drifts(workspace) if record["status"] != "ok"}
    shut = {k: record for k, record in outs.meters(workspace) if record["event"] is not None}
    for k in sorted(decided.keys() | checked.keys() | drifted.keys() | shut.keys()):
        record = decided.get(k, {})
        verdicts = [one for one in (checked.get(k), record.get("checks")) if one]
        failed = [check for one in verdicts for check in one["checks"] if check["severity"] == "fail" and not check["passed"]]
        events += [_check_event(run_id, k, check) for check in sorted(failed, key=lambda check: check["name"])]
        if k in shut:
            events.append(_meter_event(run_id, k, shut[k]))
        if k in drifted:
            events.append(_drift_event(run_id, k, outs.version_in_round(workspace, k), drifted[k]))
        if k in decided and decided[k]["event"] in SPOKEN:
            waits = decided[k]["promoted"] and approvals.by_person(workspace)
            events.append((approvals.needed if waits else _decision_event)(run_id, k, decided[k]))
    return events


def _sync_versions(root: Path, registry: Path, workspace: Path, run_id: str) -> None:
    code = None
    for folder in outs.model_folders(workspace):
        label = outs.label_of(folder)
        run = {"run": run_id, "weights": _relative(root, folder), "line": label["line"], "round": label["round"]}
        path = registry / f"{label['version']}.json"
        if path.is_file() and any(one["run"] == run_id for one in read_card(registry, label["version"])["runs"]):
            continue  # hashing weights again after every stage would cost seconds
        code = code or outs.code_hash(workspace)
        run |= {"commit": outs.commit_of(workspace)}
        names = ("version", "parents", "stage", "round", "line", "iteration", "actor", "tokenizer_id")
        kind = {"kind": label["kind"]} if label.get("kind") else {}
        add_version(registry, {name: label.get(name) for name in names} | kind | {"hashes": outs.hashes_of(folder, label, code)}, run)


def _sync_evaluations(root: Path, registry: Path, workspace: Path, run_id: str) -> None:
    for version, k, summary, path in outs.evaluations(workspace):
        _evaluated(root, registry, run_id, version, k, summary, path)
    final = outs.final(workspace)
    if final is not None:
        for name, k in (("warm", 0), ("champion", final["champion_round"])):
            path = workspace / "data" / "final" / f"{name}.parquet"
            compared = final["comparison"] if name == "champion" else None
            _evaluated(root, registry, run_id, _final_version(final, name, path), k, final[name], path, compared)


def _final_version(final: dict[str, Any], name: str, path: Path) -> str:
    if final["comparison"] is None:
        return only(read_table(path, "outcomes", ["version"]), "version")
    return final["comparison"]["a" if name == "warm" else "b"]["version"]


def _evaluated(
    root: Path,
    registry: Path,
    run_id: str,
    version: str,
    k: int,
    summary: dict[str, Any],
    path: Path,
    comparison: dict[str, Any] | None = None,
) -> None:
    if not (registry / f"{version}.json").is_file():
        return  # its model folder is not whole yet; the next call finds both
    entry = {"run": run_id, "round": k, "panel": summary["panel"], "panel_hash": summary["panel_hash"], "summary": summary}
    append_evaluation(registry, version, entry | {"outcomes": _relative(root, path), "comparison": comparison})


def _sync_checks(registry: Path, workspace: Path, run_id: str) -> None:
    """A verdict belongs to the champion that harvested the data and to the version that came of it. Both get it, whether the registry is
    written after each stage or once at the end."""
    decided = dict(outs.decision_records(workspace))
    for k, verdict in outs.verdicts(workspace):
        before = decided.get(k - 1)
        for version in dict.fromkeys([before["champion"]["version"] if before else None, outs.version_in_round(workspace, k)]):
            if version is not None and (registry / f"{version}.json").is_file():
                append_check(registry, version, {"run": run_id, "round": k, "passed": verdict["passed"], "checks": verdict["checks"]})


def _sync_drift(registry: Path, workspace: Path, run_id: str) -> None:
    kept = ("name", "column", "against", "method", "observed", "warn", "fail", "level", "detail")
    for k, record in outs.drifts(workspace):
        version = outs.version_in_round(workspace, k)
        if version is not None and (registry / f"{version}.json").is_file():
            columns = [{key: one[key] for key in kept} for one in record["columns"]]
            append_drift(registry, version, {"run": run_id, "round": k, "status": record["status"], "columns": columns})


def _sync_decisions(root: Path, registry: Path, workspace: Path, run_id: str) -> None:
    for k, record in outs.decision_records(workspace):
        champion, candidate = record["champion"]["version"], (record["candidate"] or {}).get("version")
        version = candidate or champion
        if not (registry / f"{version}.json").is_file():
            continue
        entry = {name: record.get(name) for name in ("line", "event", "promoted", "stop", "reasons", "comparison", "alpha", "waived")}
        entry |= {"run": run_id, "round": k, "by": approvals.RULE, "candidate": candidate, "champion": champion}
        awaits = record["promoted"] and approvals.by_person(workspace)
        entry |= {approvals.AWAITS: True} if awaits else {}
        with locked(root, "champions"):  # two runs of one line that promote at once are taken one after the other
            if holds(read_card(registry, version), "decisions", entry):
                continue
            if not awaits and (record["promoted"] or record["event"] == BASELINE) and _takes_over(root, read_card(registry, champion), record):
                set_champion(root, record["line"], champion)  # before the entry: a call killed in between does it again
            append_decision(registry, version, entry)
        renew_statuses(root)


def _takes_over(root: Path, card: Card, record: dict[str, Any]) -> bool:
    """Whether a run's champion becomes that of its line. The ratchet turns forward only, over runs as well.

    A baseline is champion of a line that has none. A promoted version was measured against its run's champion; where the
    line's is another one (of an earlier run) and both were measured on the same confirm panel, it must not do worse there.
    On different panels nothing can be said, and the newer one is taken.
    """
    registry = root / "registry"
    if weights_of(root, card) is None:
        return False
    current = champions(registry).get(record["line"])
    old = read_card(registry, current) if current is not None else None
    if old is None or weights_of(root, old) is None:
        return True
    if record["event"] == BASELINE:
        return False
    if record["comparison"] is not None and record["comparison"]["a"]["version"] == current:
        return True
    pair = same_panel(root, old, card, "confirm")
    return pair is None or compare(*(read_table(path, "outcomes") for path in pair))["gain"]["mean"] >= 0


def _check_event(run_id: str, k: int, check: dict[str, Any]) -> Event:
    data = {key: check[key] for key in ("name", "observed", "limit", "detail")}
    text = f"round {k}: check {check['name']} failed ({check['observed']}, limit {check['limit']}): {check['detail']}"
    return Event("check.failed", run_id, k, None, None, text, data)


def _drift_event(run_id: str, k: int, version: str | None, record: dict[str, Any]) -> Event:
    beyond = [one for one in record["columns"] if one["level"] != "ok"]
    told = "; ".join(f"{one['name']} {one['observed']:.3g} against {one['against']} ({one['level']}, {one['detail']})" for one in beyond)
    columns = [{key: one[key] for key in ("name", "against", "observed", "level")} for one in beyond]
    return Event("drift.detected", run_id, k, None, version, f"round {k}: drift: {told}", {"status": record["status"], "columns": columns})


def _meter_event(run_id: str, k: int, record: dict[str, Any]) -> Event:
    """A meter that is off: it no longer fits what the actor does."""
    return Event(record["event"], run_id, k, None, None, f"round {k}: the meter is off: {record['reason']}", {"source": "meter", "columns": []})


def _decision_event(run_id: str, k: int, record: dict[str, Any]) -> Event:
    version = (record["candidate"] or record["champion"])["version"]
    gain = (record["comparison"] or {}).get("gain")
    text = f"round {k}: {record['event'].removeprefix('model.')} {version}; {'; '.join(record['reasons'])}"
    return Event(record["event"], run_id, k, record["line"], version, text, {"champion": record["champion"]["version"], "gain": gain})


def _relative(root: Path, path: Path) -> str:
    """Relative to the checkout, with `..` for a workspace elsewhere: a checkout that is moved keeps its registry."""
    return Path(os.path.relpath(path.absolute(), root.absolute())).as_posix()
