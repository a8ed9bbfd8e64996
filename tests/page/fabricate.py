"""A made-up workspace in the real formats, for the tests of the page and for looking at it. No number in it was measured."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
from pathlib import Path

import yaml

from ratchet.episodes.files import table_of, write_table
from ratchet.files import write_json
from ratchet.page.figures import wilson

ROOT = Path(__file__).resolve().parents[2]
ENV_VERSION = "0.4.2+generated.r6"
TYPES = (
    "pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep", "pick_two_obj_and_place",
)  # fmt: skip
EASE = dict(zip(TYPES, (0.2, 0.12, 0.02, -0.04, -0.06, -0.24), strict=True))
WORDS = dict(
    zip(
        TYPES,
        ("put a mug on desk", "look at book under the desklamp", "put a clean plate in cabinet", "put a hot potato on diningtable",
         "cool some tomato and put it in sinkbasin", "put two soapbar in drawer"),
        strict=True,
    )
)  # fmt: skip
N = 512


def hashed(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:12]


def rng_of(*parts: object) -> random.Random:
    return random.Random("/".join(map(str, parts)))


def tasks(panel: str) -> list[dict]:
    found = []
    for i in range(N):
        kind, scene = TYPES[i % 6], 1 + (i * 7) % 24
        task_id = f"generated/r6/{kind}/FloorPlan{scene}/{hashed(panel, i)}"
        found.append(
            {"env": "alfworld", "env_version": ENV_VERSION, "task_id": task_id, "split": panel, "stratum": kind,
             "cluster": f"FloorPlan{scene}", "seed": 0}
        )  # fmt: skip
    return found


def panel_hash(panel: str) -> str:
    return hashed("panel", panel) * 5


def solved(version_skill: float, panel: str, salt: str) -> dict[str, bool]:
    """By task; a task's difficulty is shared by all versions, so that comparisons are paired."""
    found = {}
    for task in tasks(panel):
        u = 0.8 * rng_of(task["task_id"]).random() + 0.2 * rng_of(task["task_id"], salt).random()
        found[task["task_id"]] = u < version_skill + EASE[task["stratum"]]
    return found


def summary(panel: str, results: dict[str, bool], skill: float) -> dict:
    strata = {}
    for kind in TYPES:
        own = [results[t["task_id"]] for t in tasks(panel) if t["stratum"] == kind]
        strata[kind] = {"n": len(own), "success": wilson(sum(own) / len(own), len(own))}
    mean = sum(results.values()) / len(results)
    return {
        "panel": panel, "panel_hash": panel_hash(panel), "n": len(results), "samples": 1, "errors": 0,
        "success": wilson(mean, len(results)), "score": mean, "avg_at_k": mean, "pass_hat_k": mean,
        "steps": 18.1 - 11 * mean, "tokens": 262.0 - 120 * mean, "invalid_share": 0.09 * (1 - skill),
        "truncated_share": 1 - mean, "by_stratum": strata,
    }  # fmt: skip


def difference(a: list[bool], b: list[bool]) -> dict[str, float]:
    gaps = [float(y) - float(x) for x, y in zip(a, b, strict=True)]
    mean = sum(gaps) / len(gaps)
    half = 1.96 * math.sqrt(sum((g - mean) ** 2 for g in gaps) / len(gaps) ** 2)
    return {"mean": mean, "low": mean - half, "high": mean + half}


def comparison(panel: str, a: tuple[str, dict], b: tuple[str, dict], level: float = 0.95) -> dict:
    strata = {}
    for kind in TYPES:
        ids = [t["task_id"] for t in tasks(panel) if t["stratum"] == kind]
        x, y = [a[1][i] for i in ids], [b[1][i] for i in ids]
        strata[kind] = {"n": len(ids), "a": sum(x) / len(x), "b": sum(y) / len(y), "gain": difference(x, y)}
    x, y = list(a[1].values()), list(b[1].values())
    return {
        "panel": panel, "panel_hash": panel_hash(panel), "n": len(x), "level": level, "resamples": 10000, "clusters": 24,
        "a": {"version": a[0], "success": wilson(sum(x) / len(x), len(x))},
        "b": {"version": b[0], "success": wilson(sum(y) / len(y), len(y))},
        "gain": difference(x, y), "by_stratum": strata,
        "flips": {"gained": sorted(i for i in a[1] if b[1][i] and not a[1][i]), "lost": sorted(i for i in a[1] if a[1][i] and not b[1][i])},
    }  # fmt: skip


def write_episodes(folder: Path, panel: str, results: dict[str, bool], version: str, hostile: str | None = None) -> None:
    episodes, steps = [], []
    for task in tasks(panel)[:60]:
        episode_id = hashed("episode", version, task["task_id"])
        won = results[task["task_id"]]
        turns = play(task, won)
        for t, turn in enumerate(turns):
            steps.append({"episode_id": episode_id, "t": t, "action_type": turn["action"].split(" ")[0], "policy_version": version} | turn)
        if hostile is not None:
            steps[-1]["observation"] = hostile
            steps[-1]["reply"] = f"{hostile}\n> {hostile}"
            steps[-1]["action"] = hostile
        episodes.append(
            {**task, "episode_id": episode_id, "policy_id": version, "round": 2, "iteration": 0, "group_id": task["task_id"],
             "sample": 0, "solved": won, "score": float(won), "terminated": won, "truncated": not won, "error": None,
             "n_steps": len(turns), "n_tokens": 14 * len(turns), "tokenizer_id": hashed("tok"), "temperature": 0.0}
        )  # fmt: skip
    write_table(folder / "episodes.parquet", "episodes", table_of("episodes", episodes))
    write_table(folder / "steps.parquet", "steps", table_of("steps", steps))


def play(task: dict, won: bool) -> list[dict]:
    goal, rng = WORDS[task["stratum"]], rng_of("play", task["task_id"])
    places = rng.sample(["cabinet 1", "cabinet 2", "countertop 1", "desk 1", "drawer 1", "fridge 1", "shelf 1", "sidetable 1"], 5)
    thing = next(word for word in ("mug", "book", "plate", "potato", "tomato", "soapbar") if word in goal)
    listing = ", ".join(f"a {p}" for p in places[:-1])
    turns = [
        {
            "observation": f"-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, "
            f"you see {listing}, and a {places[-1]}.\n\nYour task is to: {goal}.",
            "thought": f"need {thing}, not found yet; look at {places[0]}", "action": f"go to {places[0]}",
        }
    ]  # fmt: skip
    for i, place in enumerate(places[:4]):
        last = i == 3
        seen = f"a {thing} 1, and a pen 2" if last and won else rng.choice(["a pen 2", "nothing", "a creditcard 1, a keychain 3, and a watch 1"])
        action = f"take {thing} 1 from {place}" if last and won else f"go to {places[i + 1]}"
        thought = f"{thing} found on {place}; take it" if last and won else f"{thing} not on {place}; look at {places[i + 1]}"
        turns.append({"observation": f"You arrive at {place}. On the {place}, you see {seen}.", "thought": thought, "action": action})
    if won:
        turns.append({"observation": f"You pick up the {thing} 1 from the {places[3]}.", "thought": f"holding {thing}; bring it to {places[4]}", "action": f"go to {places[4]}"})
        turns.append({"observation": f"You arrive at {places[4]}. On the {places[4]}, you see nothing.", "thought": f"at the goal with {thing}", "action": f"move {thing} 1 to {places[4]}"})
    else:
        for i in range(3):
            turns.append({"observation": "Nothing happens.", "thought": f"need {thing}", "action": f"take {thing} 1 from {places[4]}", "valid": i != 0 and False, "repeated": i > 0})
        turns.append({"observation": "Nothing happens.", "thought": f"{thing} not found; look", "action": "", "format_ok": False, "valid": False, "repeated": True})
    for turn in turns:
        thought = turn.pop("thought")
        turn["reply"] = f"{thought}\n> {turn['action']}" if turn["action"] else thought
        turn.setdefault("valid", True), turn.setdefault("repeated", False), turn.setdefault("format_ok", True)
        turn["reward"] = turn["score"] = 0.0
    return turns


def curve_of_loss(tokens: int, end: float) -> list[dict]:
    rng, points = rng_of("loss", tokens), []
    n = 300
    for i in range(1, n + 1):
        loss = end + 4.6 * math.exp(-7 * i / n) + 0.5 * math.exp(-2.2 * i / n) + rng.gauss(0, 0.03)
        held = end + 0.05 + 4.6 * math.exp(-7 * i / n) + 0.5 * math.exp(-2.2 * i / n) if i % 30 == 0 else None
        points.append({"tokens": tokens * i // n, "loss": loss, "held_out_loss": held, "grad_norm": 1 + rng.random()})
    return points


def curve_online(k: int, start: float, end: float) -> list[dict]:
    rng, points = rng_of("online", k), []
    for i in range(1, 11):
        share = start + (end - start) * i / 10
        points.append(
            {"iteration": i, "success": min(1.0, share + rng.gauss(0, 0.03)), "score": share, "episodes": 128, "generated_tokens": 24000 + rng.randrange(4000),
             "env_steps": 1500, "loss": rng.gauss(0, 0.01), "clip_fraction": 0.01 + 0.01 * rng.random(), "ratio_mean": 1.0, "kl": 0.0004 * i * (1 + rng.random() / 4),
             "entropy": 0.42 - 0.012 * i + rng.gauss(0, 0.008), "grad_norm": 0.3 + rng.random() / 5, "zero_variance_groups": rng.randrange(3, 9), "groups": 16,
             "invalid_share": 0.08 - 0.004 * i + rng.random() / 100, "format_ok_share": 0.999, "truncated_share": 1 - share, "errors": 0,
             "skipped_steps": 0, "logprob_max_diff": 3.2e-6, "logprob_mean_diff": 2e-7}
        )  # fmt: skip
    return points


def checks(failed: bool) -> dict:
    found = [
        {"name": "error_share", "severity": "fail", "passed": True, "observed": 0.0, "limit": 0.02, "detail": "episodes that ended in an environment error", "rows": []},
        {"name": "replay_mismatch", "severity": "fail", "passed": not failed, "observed": 0.058 if failed else 0.0, "limit": 0.0,
         "detail": "3 of 52 replayed episodes came out different" if failed else "of replayed episodes came out different",
         "rows": [f"{hashed('bad', i)}:{i}" for i in range(3)] if failed else []},
        {"name": "invalid_share", "severity": "fail", "passed": True, "observed": 0.2137, "limit": 0.9, "detail": "steps that the environment refused", "rows": []},
        {"name": "action_in_reply", "severity": "fail", "passed": True, "observed": 0, "limit": 0, "detail": "actions that are no literal span of their reply", "rows": []},
        {"name": "success_of_policy", "severity": "warn", "passed": False, "observed": 0.0, "limit": 0.01, "detail": "policy `random` solved nothing; its episodes teach only failure",
         "rows": [f"{hashed('w', i)}:0" for i in range(2)]},
    ]  # fmt: skip
    return {"passed": not failed, "skipped": None, "checks": found}


def fabricate(
    root: Path, *, promoted: tuple[int, ...] = (2,), stop_at: int | None = None, final: bool = True, hostile: str | None = None,
    waived: bool = False, n_rounds: int = 2, only: str | None = None,
) -> Path:  # fmt: skip
    """Writes a run's results under `root`. `only="nothing"` leaves params.yaml alone in an empty workspace."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["rounds"] = {str(k): {"prev": str(k - 1)} for k in range(1, n_rounds + 1)}
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    if only == "nothing":
        return root
    metrics = root / "reports" / "metrics"
    write_json(metrics / "prepare.json", {"games": params["prepare"]["games"], "vocab_size": 1200, "panels": {p: panel_hash(p) for p in ("select", "confirm", "test", "train")}})
    write_json(metrics / "demonstrate.json", {"episodes": 16000, "steps": 131840, "tokens": 3412877, "success": 1.0, "mean_steps": 8.24})
    for name, tokens, parameters, end in (("actor", 3_000_000, 1_118_336, 0.31), ("small", 1_000_000, 231_104, 0.62)):
        write_json(metrics / f"warm_start-{name}.json", {"parameters": parameters, "tokens": tokens, "steps": tokens // 2048, "curve": curve_of_loss(tokens, end),
                                                         "held_out_loss": end + 0.06, "skipped_steps": 0, "trainer": "learner"})  # fmt: skip
    write_json(root / "data/panels/test.json", {"name": "test", "hash": panel_hash("test"), "tasks": tasks("test")})
    warm = (hashed("warm"), 0.553)
    champion = {"version": warm[0], "round": 0, "model": "models/rounds/0/version"}
    skills = {warm[0]: warm[1]}
    write_round_zero(root, warm, champion)
    stopped = None
    for k in range(1, n_rounds + 1):
        if stopped:
            skip_round(root, k, f"round {stopped} stopped the run")
            continue
        skill = skills[champion["version"]] + (0.085 if k in promoted else -0.004)
        version = hashed("round", k)
        skills[version] = skill
        failed = k == stop_at
        champion = write_round(root, k, (version, skill), champion, skills, k in promoted, failed, waived)
        stopped = k if failed and not waived else None
    if final:
        write_final(root, warm, champion, skills, hostile)
    return root


def card(root: Path, model: str, version: str, parents: list[str], stage: str, k: int, iteration: int | None) -> None:
    write_json(root / model / "ratchet.json", {"version": version, "parents": parents, "stage": stage, "round": k, "iteration": iteration, "actor": "actor",
                                               "line": "quickstart", "tokenizer_id": hashed("tok"), "params_hash": hashed("params"), "data_hashes": {"demonstrations": hashed("demo")}})  # fmt: skip


def write_round_zero(root: Path, warm: tuple[str, float], champion: dict) -> None:
    folder, model = root / "data/rounds/0", "models/rounds/0/version"
    card(root, model, warm[0], [], "warm_start", 0, None)
    results = solved(warm[1], "confirm", warm[0])
    write_json(folder / "evaluation/evaluation.json", {"round": 0, "version": warm[0], "model": model, "skipped": None, "selected": "actor",
        "candidates": [{"name": "actor", "version": warm[0], "select": summary("select", solved(warm[1], "select", warm[0]), warm[1])}],
        "confirm": summary("confirm", results, warm[1])})  # fmt: skip
    write_episodes(folder / "evaluation", "confirm", results, warm[0])
    write_json(folder / "decision/decision.json", {"round": 0, "line": "quickstart", "champion": champion, "candidate": None, "next_start": "champion", "promoted": False,
        "event": "model.baseline", "stop": None, "reasons": ["the warm start is the first champion of this run"], "comparison": None, "alpha": 0.0, "checks": None, "waived": []})  # fmt: skip


def write_round(root: Path, k: int, own: tuple[str, float], champion: dict, skills: dict, promoted: bool, failed: bool, waived: bool) -> dict:
    folder, metrics = root / f"data/rounds/{k}", root / "reports/metrics"
    write_json(metrics / f"harvest-{k}.json", {"episodes": 512, "errors": 0, "by_policy": {
        "expert": {"episodes": 102, "success": 1.0, "mean_steps": 8.2, "invalid_share": 0.0, "mean_tokens": 118.4},
        "actor": {"episodes": 205, "success": 0.517, "mean_steps": 13.1, "invalid_share": 0.061, "mean_tokens": 190.2},
        "small": {"episodes": 103, "success": 0.233, "mean_steps": 16.7, "invalid_share": 0.142, "mean_tokens": 236.9},
        "random": {"episodes": 102, "success": 0.0, "mean_steps": 20.0, "invalid_share": 0.0, "mean_tokens": 0.0}}})  # fmt: skip
    write_json(metrics / f"label-{k}.json", {"replayed": 52, "mismatched": 3 if failed else 0, "r_aux": {"format": 14, "invalid": 611, "repeated": 402, "none": 6318}})
    verdict = checks(failed)
    write_json(folder / "check/verdict.json", verdict)
    base = {"round": k, "line": "quickstart", "next_start": "champion", "alpha": 0.025, "checks": verdict, "waived": []}
    if failed and waived:
        base["waived"] = [{"check": "replay_mismatch", "reason": "known: three games depend on a shuffled listing, see issue 12"}]
    if failed and not waived:
        reason = "check replay_mismatch failed (0.058, limit 0)"
        write_json(metrics / f"evolve_online-{k}.json", {"skipped": reason})
        write_json(folder / "online/skipped.json", {"skipped": reason})
        write_json(folder / "evaluation/skipped.json", {"skipped": reason})
        write_json(folder / "decision/decision.json", base | {"champion": champion, "candidate": None, "promoted": False, "event": "run.stopped",
                                                              "stop": reason, "reasons": [reason, "the champion stays as it was"], "comparison": None})  # fmt: skip
        return champion
    before = skills[champion["version"]]
    write_json(metrics / f"evolve_online-{k}.json", {"curve": curve_online(k, before - 0.05, own[1] - 0.02), "candidates": ["iter-005", "iter-010"]})
    results = solved(own[1], "confirm", own[0])
    model = f"models/rounds/{k}/version"
    card(root, model, own[0], [champion["version"]], "evolve_online", k, 10)
    write_json(folder / "evaluation/evaluation.json", {"round": k, "version": own[0], "model": model, "skipped": None, "selected": "iter-010", "candidates": [
        {"name": "iter-005", "version": hashed("five", k), "select": summary("select", solved(own[1] - 0.03, "select", str(k)), own[1])},
        {"name": "iter-010", "version": own[0], "select": summary("select", solved(own[1], "select", own[0]), own[1])}], "confirm": summary("confirm", results, own[1])})  # fmt: skip
    write_episodes(folder / "evaluation", "confirm", results, own[0])
    compared = comparison("confirm", (champion["version"], solved(before, "confirm", champion["version"])), (own[0], results), 0.975)
    candidate = {"version": own[0], "round": k}
    reasons = [f"gain on confirm {compared['gain']['mean']:+.3f}, lower bound {compared['gain']['low']:+.3f} at the spent level 0.025",
               "no task type lost more than 0.15" if promoted else "a gain above zero was not shown; the champion stays"]  # fmt: skip
    after = {**candidate, "model": model} if promoted else champion
    write_json(folder / "decision/decision.json", base | {"champion": after, "candidate": candidate, "promoted": promoted,
        "event": "model.promoted" if promoted else "model.kept", "stop": None, "reasons": reasons, "comparison": compared})  # fmt: skip
    return after


def instruments(root: Path, k: int) -> None:
    """What a round with meter, critic, offline update and drift leaves besides."""
    folder = root / f"data/rounds/{k}"
    tests = [
        {"name": "accuracy above the majority class", "observed": 0.81, "limit": 0.56, "passed": True},
        {"name": "calibration error", "observed": 0.171, "limit": 0.15, "passed": False},
        {"name": "direction of steps (no exact labels)", "observed": None, "limit": 0.52, "passed": True},
    ]
    reliability = [{"low": i / 10, "high": (i + 1) / 10, "n": 40 + i, "said": i / 10 + 0.05, "was": min(1.0, 0.02 + i / 9)} for i in range(10)]
    verdict = {"passed": False, "enforced": True, "failed": ["calibration error"], "tests": tests, "prefixes": 445, "ece": 0.171, "reliability": reliability}
    gate = {"event": "drift.detected", "reason": "it fails its gate: calibration error 0.171 (limit 0.150)", "action": "off", "version": None, "gate": verdict, "limit": 512}
    write_json(folder / "meter/gate.json", gate)
    write_json(folder / "meter/calibration.json", {"temperature": 1.3, "limit": 512, "factors": {}, "ece": 0.171, "reliability": reliability, "prefixes": 445})
    curve = [
        {"epoch": e, "td_error": 0.2 / e, "held_out_td_error": 0.22 / e + 0.01, "calibration": 0.06, "rank_correlation": 0.5 + e / 20, "loss_v": 0.1, "loss_q": 0.1}
        for e in range(1, 6)
    ]
    reason = "rank correlation with the outcome 0.75 on held-out tasks"
    write_json(folder / "critic/gate.json", {"passed": True, "rank_correlation": 0.75, "limit": 0.1, "reason": reason})
    write_json(folder / "critic/fit.json", {"curve": curve, "steps": 50, "skipped_steps": 0, "gate": {}, "td_error": {"fitted": 0.04, "held_out": 0.06}, "fitted": 410, "held_out": 102})
    write_json(folder / "buffer/buffer.json", {"round": k, "episodes": 512, "success": 0.5, "by_source": {"expert": 200, "own": 312}, "held_out": 102})
    write_json(root / f"reports/metrics/evolve_offline-{k}.json", {"method": "bppo", "version": hashed("offline", k), "ess": 0.91, "kl": 0.0123})
    limits = {"method": "wasserstein", "warn": 0.1, "fail": 0.3, "chance": 0.02, "by": None, "reference": {}, "current": {}}
    columns = [
        limits | {"name": f"drift.{name}", "column": name, "against": "previous", "detail": "made up", "observed": seen, "level": level}
        for name, level, seen in (("episode_length", "ok", 0.04), ("action_type", "warn", 0.16), ("reward", "ok", 0.02))
    ]
    write_json(folder / "drift/drift.json", {"passed": True, "status": "warn", "skipped": None, "columns": columns, "references": [], "note": None})
    page = "<!doctype html><title>Drift</title><h1>Drift</h1><script>document.title += ' of round 2'</script>"
    (folder / "drift/drift.html").write_text(page)


def skip_round(root: Path, k: int, reason: str) -> None:
    for name in ("harvest", "label", "evolve_online", "evaluate"):
        write_json(root / f"reports/metrics/{name}-{k}.json", {"skipped": reason})
    for name in ("harvest", "labels", "online", "evaluation"):
        write_json(root / f"data/rounds/{k}/{name}/skipped.json", {"skipped": reason})
    write_json(root / f"data/rounds/{k}/check/verdict.json", {"passed": True, "skipped": reason, "checks": []})
    write_json(root / f"data/rounds/{k}/decision/decision.json", {"skipped": reason})
    write_json(root / f"reports/metrics/decide-{k}.json", {"skipped": reason})


def write_final(root: Path, warm: tuple[str, float], champion: dict, skills: dict, hostile: str | None) -> None:
    own = champion["version"]
    before, after = solved(warm[1], "test", warm[0]), solved(skills[own], "test", own)
    write_json(root / "data/final/final.json", {"warm": summary("test", before, warm[1]), "champion": summary("test", after, skills[own]),
        "comparison": comparison("test", (warm[0], before), (own, after)), "champion_round": champion["round"], "same": own == warm[0]})  # fmt: skip
    shutil.copyfile(root / "data/final/final.json", root / "reports/metrics/final.json")
    write_episodes(root / "data/final", "test", after, own, hostile)


def round_trip(report: dict) -> dict:
    return json.loads(json.dumps(report, allow_nan=False))
