"""Reads a workspace's results into one plain dictionary: what reports/report.json holds and the page shows.

Deterministic, without clocks, host names or absolute paths. A part whose stage has not run is None; a part whose stage
was skipped is `{"skipped": reason}`.
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.compute as pc
import yaml

from ratchet.episodes.files import read_table
from ratchet.files import read_json
from ratchet.page.words import skipped

SURROGATE = re.compile("[\ud800-\udfff]")
MAX_TEXT = 20_000  # characters of one observation, reply or action that the report keeps
EPISODE_FIELDS = (
    "episode_id", "env", "env_version", "task_id", "stratum", "cluster", "policy_id", "seed", "solved", "score",
    "terminated", "truncated", "error", "n_steps", "n_tokens", "temperature",
)  # fmt: skip
STEP_FIELDS = ("episode_id", "t", "observation", "reply", "action", "valid", "repeated", "format_ok", "reward", "score")
CARD_FIELDS = ("version", "parents", "stage", "round", "iteration", "actor", "line", "tokenizer_id", "params_hash", "data_hashes")


def gather(workspace: Path) -> dict[str, Any]:
    """The report of the run in `workspace`. Raises RatchetError where a file that is there cannot be read."""
    settings = _settings(workspace / "params.yaml")
    metrics = workspace / "reports" / "metrics"
    rounds = [round_of(workspace, k) for k in round_numbers(workspace, settings)]
    final = _part(workspace / "data" / "final" / "final.json", metrics / "final.json")
    episodes, episodes_from = _episodes(workspace, settings, rounds, final)
    report = {
        "line": settings.get("line"),
        "seed": settings.get("seed"),
        "start": settings.get("start"),
        "env": _env(workspace, settings, episodes, rounds, final),
        "settings": settings,
        "prepare": _part(metrics / "prepare.json"),
        "demonstrate": _part(metrics / "demonstrate.json"),
        "warm_start": _warm_start(metrics, settings),
        "rounds": rounds,
        "final": final,
        "versions": _versions(workspace, rounds),
        "failed_checks": _failed_checks(rounds),
        "episodes": episodes,
        "episodes_from": episodes_from,
    }
    return _plain(report)


def _settings(path: Path) -> dict[str, Any]:
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def _part(*paths: Path) -> dict[str, Any] | None:
    """The first of `paths` that is there; else why its folder was skipped; else None."""
    for path in paths:
        if path.is_file():
            return read_json(path)
    note = paths[0].parent / "skipped.json"
    return read_json(note) if note.is_file() else None


def round_numbers(workspace: Path, settings: dict) -> list[int]:
    """Rounds that are planned or have begun."""
    folder = workspace / "data" / "rounds"
    found = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    planned = {str(key) for key in (settings.get("rounds") or {})} | {"0"}
    return sorted(int(name) for name in found | planned if name.isdigit())


def decision_of(workspace: Path, k: int) -> dict[str, Any] | None:
    """What was decided in a round."""
    return _part(workspace / "data" / "rounds" / str(k) / "decision" / "decision.json", workspace / "reports" / "metrics" / f"decide-{k}.json")


def round_of(workspace: Path, k: int) -> dict[str, Any]:
    """What the stages of a round came to."""
    folder, metrics = workspace / "data" / "rounds" / str(k), workspace / "reports" / "metrics"
    result = {
        "round": k,
        "evaluation": _part(folder / "evaluation" / "evaluation.json", metrics / f"evaluate-{k}.json"),
        "decision": decision_of(workspace, k),
    }
    if k == 0:
        return result | dict.fromkeys(("harvest", "label", "check", "online", "buffer", "meter", "critic", "offline", "drift"))
    return result | {
        "harvest": _part(metrics / f"harvest-{k}.json", folder / "harvest" / "skipped.json"),
        "label": _part(metrics / f"label-{k}.json", folder / "labels" / "skipped.json"),
        "check": _part(folder / "check" / "verdict.json"),
        "online": _part(metrics / f"evolve_online-{k}.json", folder / "online" / "skipped.json"),
        "buffer": _part(folder / "buffer" / "buffer.json"),
        "meter": _parts(folder / "meter", ("gate", "calibration", "credit")),
        "critic": _parts(folder / "critic", ("gate", "fit")),
        "offline": _part(metrics / f"evolve_offline-{k}.json"),
        "drift": _part(folder / "drift" / "drift.json"),
    }


def _parts(folder: Path, names: tuple[str, ...]) -> dict[str, Any] | None:
    """What an instrument left of itself, by name; `{"skipped": reason}` where it is off, None where its stage has not run."""
    found = {name: read_json(folder / f"{name}.json") for name in names if (folder / f"{name}.json").is_file()}
    return found or _part(folder / "skipped.json")


def _warm_start(metrics: Path, settings: dict) -> dict[str, Any]:
    """By actor, in the order of the settings: the first one is the actor that evolves."""
    names = [str(name) for name in (settings.get("actors") or {})]
    for path in sorted(metrics.glob("warm_start-*.json")):
        name = path.stem.removeprefix("warm_start-")
        names += [] if name in names else [name]
    return {name: {"order": i, "metrics": _part(metrics / f"warm_start-{name}.json")} for i, name in enumerate(names)}


def _env(workspace: Path, settings: dict, episodes: list[dict], rounds: list[dict], final: dict | None) -> dict[str, Any]:
    """Name and version of the environment; `generated` where its tasks are ours and no benchmark's."""
    version = episodes[0]["env_version"] if episodes else None
    if version is None and (panel := _part(workspace / "data" / "panels" / "test.json")) and panel.get("tasks"):
        version = panel["tasks"][0].get("env_version")
    name = (settings.get("env") or {}).get("name") or (episodes[0]["env"] if episodes else None)
    compared = [final] + [one["decision"] for one in rounds]
    flips = [(one or {}).get("comparison") for one in compared]
    ids = [i for one in flips if one for i in one["flips"]["gained"] + one["flips"]["lost"]]
    generated = "generated" in (version or "") or any(str(i).startswith("generated/") for i in ids)
    return {"name": name, "version": version, "generated": generated}


def _versions(workspace: Path, rounds: list[dict]) -> list[dict[str, Any]]:
    """One entry an evaluated version, with its card where the model folder is there."""
    found = []
    for one in rounds:
        evaluation, decision = one["evaluation"], one["decision"] or {}
        if skipped(evaluation) or not evaluation.get("version"):
            continue
        model = evaluation.get("model")
        inside = model is not None and not PurePosixPath(model).is_absolute() and ".." not in PurePosixPath(model).parts
        card = _part(workspace / model / "ratchet.json") if inside else None
        found.append(
            {
                "round": one["round"],
                "version": evaluation["version"],
                "model": model if inside else None,
                "selected": evaluation.get("selected"),
                "event": decision.get("event"),
                "card": {key: card.get(key) for key in CARD_FIELDS} if card and not card.get("skipped") else None,
            }
        )
    return found


def _failed_checks(rounds: list[dict]) -> list[dict[str, Any]]:
    """Every failed check of severity `fail`, with its waiver: what `seal` asks for."""
    found = []
    for one in rounds:
        decision = one["decision"] or {}
        waived = {item["check"]: item["reason"] for item in decision.get("waived") or []}
        names: dict[str, dict] = {}
        for verdict in (one["check"], decision.get("checks")):
            for check in (verdict or {}).get("checks") or []:
                if check["severity"] == "fail" and not check["passed"]:
                    names.setdefault(check["name"], check)
        for name, check in sorted(names.items()):
            found.append({"round": one["round"], "check": name, "detail": check.get("detail"), "waived": waived.get(name)})
    return found


def _episodes(workspace: Path, settings: dict, rounds: list[dict], final: dict | None) -> tuple[list[dict], str | None]:
    """Whole episodes of the champion, and the panel they were played on."""
    wanted = int((settings.get("report") or {}).get("episodes", 6))
    folders = [(workspace / "data" / "final", "test")]
    champion = next((one["decision"]["champion"] for one in reversed(rounds) if (one["decision"] or {}).get("champion")), None)
    if champion is not None:
        folders.append((workspace / "data" / "rounds" / str(champion["round"]) / "evaluation", "confirm"))
    for folder, panel in folders:
        if (folder / "episodes.parquet").is_file() and (folder / "steps.parquet").is_file():
            return _read_episodes(folder, wanted), panel
    return [], None


def _read_episodes(folder: Path, wanted: int) -> list[dict[str, Any]]:
    rows = read_table(folder / "episodes.parquet", "episodes", list(EPISODE_FIELDS)).to_pylist()
    chosen = choose([row for row in rows if row["error"] is None], wanted)
    steps = read_table(folder / "steps.parquet", "steps", list(STEP_FIELDS))
    result = []
    for row in chosen:
        own = steps.filter(pc.field("episode_id") == row["episode_id"]).to_pylist()
        own.sort(key=lambda step: step["t"])
        result.append(row | {"steps": [{key: step[key] for key in STEP_FIELDS if key != "episode_id"} for step in own]})
    return result


def choose(rows: list[dict], wanted: int) -> list[dict]:
    """`wanted` episodes, half of them failed where there are as many, over as many task types as possible.

    Within that the order is that of the hashed episode ids, so nobody picks the pretty ones.
    """
    order = sorted(rows, key=lambda row: hashlib.sha256(row["episode_id"].encode()).hexdigest())
    left = {True: [row for row in order if row["solved"]], False: [row for row in order if not row["solved"]]}
    chosen: list[dict] = []
    used: dict[str, int] = {}
    while len(chosen) < wanted and (left[True] or left[False]):
        turn = len(chosen) % 2 == 0
        pool = left[turn] or left[not turn]
        row = min(pool, key=lambda one: used.get(one["stratum"], 0))
        pool.remove(row)
        used[row["stratum"]] = used.get(row["stratum"], 0) + 1
        chosen.append(row)
    return chosen


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it: string keys, no NaN, no lone surrogates, no text beyond MAX_TEXT."""
    if isinstance(value, dict):
        return {_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    text = SURROGATE.sub("\ufffd", text)
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} [{len(text) - MAX_TEXT} more characters are in the Parquet file]"
