"""Reads a workspace's outs for people: rows of an evaluation, a decision in words, the outcome of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.files import read_json


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run. `warm`, `champion` and `gain` are texts such as `41.2 % [37.0, 45.5]`, or None where nothing was measured."""

    warm: str | None
    champion: str | None
    gain: str | None
    champion_round: str | None
    decisions: list[str]
    report: Path | None


def percent(interval: dict[str, Any], signed: bool = False) -> str:
    """`41.2 % [37.0, 45.5]` from {"mean", "low", "high"}; points with a sign for a gain."""
    form = "+.1f" if signed else ".1f"
    low, high = (format(100 * interval[key], form) for key in ("low", "high"))
    return f"{format(100 * interval['mean'], form)}{' points' if signed else ' %'} [{low}, {high}]"


def evaluation_rows(workspace: Path, key: str) -> list[dict[str, Any]]:
    """One row a candidate on `select`, one for the selected one on `confirm`; none where the stage was skipped."""
    path = workspace / "data" / "rounds" / key / "evaluation" / "evaluation.json"
    value = read_json(path) if path.is_file() else {}
    if not value or value.get("skipped"):
        return []
    rows = [_row(item["name"], item["version"], item["select"]) for item in value.get("candidates", []) if item.get("select")]
    if value.get("confirm"):
        rows.append(_row(value.get("selected") or value["version"], value["version"], value["confirm"]))
    return rows


def comparison_rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for all tasks of a COMPARISON, one a stratum: success of A and B, and the gain."""
    whole = {"n": comparison["n"], "a": comparison["a"]["success"], "b": comparison["b"]["success"], "gain": comparison["gain"]}
    rows = []
    for name, one in {"all": whole, **comparison["by_stratum"]}.items():
        a, b = (value["mean"] if isinstance(value, dict) else value for value in (one["a"], one["b"]))
        gain = percent(one["gain"], signed=True)
        rows.append({"games of": name, "n": one["n"], "A": f"{100 * a:.1f} %", "B": f"{100 * b:.1f} %", "gain (B - A)": gain})
    return rows


def decision_text(workspace: Path, key: str) -> str | None:
    """What a round decided and why, as one sentence; None where there is no decision."""
    path = workspace / "data" / "rounds" / key / "decision" / "decision.json"
    if not path.is_file():
        return None
    value = read_json(path)
    champion = value["champion"]
    said = f"round {value['round']}: {value['event']}, champion {champion['version']} of round {champion['round']}"
    why = "; ".join([*value.get("reasons", []), *([f"stopped: {value['stop']}"] if value.get("stop") else [])])
    return f"{said} ({why})" if why else said


def finding_rows(workspace: Path, stage: str, key: str) -> list[dict[str, Any]]:
    """One row a check of round `key` that did not pass (`stage` check), or a column that drifted (drift); none where the stage was skipped."""
    name, entries = {"check": ("verdict", "checks"), "drift": ("drift", "columns")}[stage]
    path = workspace / "data" / "rounds" / key / stage / f"{name}.json"
    value = read_json(path) if path.is_file() else {}
    if value.get("skipped"):
        return []
    found = [one for one in value.get(entries) or [] if not one.get("passed", one.get("level") == "ok")]
    rows = []
    for one in found:
        row = {"name": one["name"], "severity": one.get("severity") or one["level"], "observed": one["observed"]}
        rows.append(row | {"limit": one.get("limit", one.get("warn")), "what": one["detail"]})
    return rows


def outcome(workspace: Path) -> Outcome:
    """What a run came to, from data/final and the decisions; what is not there is None or left out."""
    path = workspace / "data" / "final" / "final.json"
    final = read_json(path) if path.is_file() else {}
    measured = "warm" in final
    keys = sorted((folder.name for folder in (workspace / "data" / "rounds").glob("*") if folder.name.isdigit()), key=int)
    report = workspace / "reports" / "report.html"
    return Outcome(
        warm=percent(final["warm"]["success"]) if measured else None,
        champion=percent(final["champion"]["success"]) if measured else None,
        gain=percent(final["comparison"]["gain"], signed=True) if measured and final.get("comparison") else None,
        champion_round=str(final["champion_round"]) if measured else None,
        decisions=[text for text in (decision_text(workspace, key) for key in keys) if text],
        report=report if report.is_file() else None,
    )


def _row(name: str, version: str, summary: dict[str, Any]) -> dict[str, Any]:
    success = summary["success"]
    return {
        "candidate": name,
        "version": version,
        "panel": summary["panel"],
        "games": summary["n"],
        "success": round(success["mean"], 4),
        "low": round(success["low"], 4),
        "high": round(success["high"], 4),
        "steps": summary.get("steps"),
        "invalid_share": summary.get("invalid_share"),
    }
