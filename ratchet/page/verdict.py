"""What the run came to, in plain words: the first thing on the page."""

from __future__ import annotations

from typing import Any

from ratchet.page.words import between, between_signed, capital, level, number, percent, round_name, signed, skipped


def things(report: dict) -> str:
    """What the environment calls a task."""
    return "games" if report["env"]["name"] == "alfworld" else "tasks"


def stopped_round(report: dict) -> dict | None:
    """The round whose decision stopped the run; rounds after it only say that they were skipped."""
    for one in report["rounds"]:
        decision = one["decision"]
        if decision and not decision.get("skipped") and decision.get("event") == "run.stopped":
            return one
    return next((one for one in report["rounds"] if (one["decision"] or {}).get("stop")), None)


def verdict(report: dict) -> dict[str, Any]:
    """`{"kind", "headline", "sentences", "notes"}`; `kind` is promoted, same, stopped or open."""
    final, stopped = report["final"], stopped_round(report)
    notes = []
    if stopped is not None:
        reason = stopped["decision"].get("stop") or "; ".join(stopped["decision"].get("reasons") or []) or "no reason given"
        reason = reason.rstrip(".")
        later = " Later rounds did not run." if report["rounds"][-1]["round"] > stopped["round"] else ""
        notes.append(f"The run was stopped in round {stopped['round']}: {reason}.{later}")
    if skipped(final) or not final.get("champion"):
        return _open(report, stopped, notes)
    result = _same(report, final, stopped) if final.get("same") else _promoted(report, final)
    if final.get("comparison") and final["warm"]["panel_hash"] != final["champion"]["panel_hash"]:
        notes.append("The two versions were measured on different panels (their hashes differ): do not compare them.")
    errors = final["champion"].get("errors") or 0
    if errors:
        notes.append(f"{number(errors)} of the champion's episodes ended in an environment error; they are left out of its success.")
    return {**result, "notes": notes}


def _promoted(report: dict, final: dict) -> dict[str, Any]:
    warm, champion, compared = final["warm"]["success"], final["champion"]["success"], final.get("comparison")
    name = capital(round_name(final["champion_round"]))
    headline = f"{name} was promoted: {percent(warm['mean'])} → {percent(champion['mean'])}"
    unseen = f"{number(final['champion']['n'])} unseen {things(report)}"
    before = f"the warm start solves {percent(warm['mean'])} (95\u202f% interval {between(warm)})"
    sentences = [f"On {unseen} of the test panel {before} and the champion {percent(champion['mean'])} ({between(champion)})."]
    if compared:
        gain = compared["gain"]
        sentences.append(
            f"Paired gain {signed(gain['mean'])} points, {level(compared.get('level'))} interval {between_signed(gain)}. " + _reading(gain)
        )
    return {"kind": "promoted", "headline": headline, "sentences": sentences}


def _reading(gain: dict) -> str:
    if gain["low"] > 0:
        return "The interval lies above zero: the champion is measurably better."
    if gain["high"] < 0:
        return "The interval lies below zero: on this panel the promoted version is worse, although it passed the confirm panel."
    return "The interval includes zero: it was promoted on the confirm panel, but this panel alone does not establish a gain."


def _same(report: dict, final: dict, stopped: dict | None) -> dict[str, Any]:
    success = final["champion"]["success"]
    headline = f"Nothing was promoted: the warm start stays at {percent(success['mean'])}"
    unseen = f"{number(final['champion']['n'])} unseen {things(report)}"
    decided = [one for one in report["rounds"] if one["round"] > 0 and (one["decision"] or {}).get("comparison")]
    why = "No candidate got as far as a comparison." if not decided else (
        f"{_count(len(decided))} compared with the champion on the confirm panel; the rule for a promotion was not met."
    )
    sentences = [f"On {unseen} of the test panel it solves {percent(success['mean'])} (95\u202f% interval {between(success)}).", why]
    return {"kind": "stopped" if stopped else "same", "headline": headline, "sentences": sentences}


def _count(n: int) -> str:
    return "One candidate was" if n == 1 else f"{number(n)} candidates were"


def _open(report: dict, stopped: dict | None, notes: list[str]) -> dict[str, Any]:
    if stopped is not None:
        headline = f"The run was stopped in round {stopped['round']}"
    else:
        headline = "This run has no final comparison yet"
    reason = skipped(report["final"]) or "its result is empty"
    sentences = [f"The comparison on the test panel is {reason}." if report["final"] else "The comparison on the test panel has not run."]
    last = next((one for one in reversed(report["rounds"]) if (one["decision"] or {}).get("champion")), None)
    if last is not None:
        champion = last["decision"]["champion"]
        sentences.append(f"Champion so far: {round_name(champion['round'])}, version {champion['version']}.")
    return {"kind": "stopped" if stopped else "open", "headline": headline, "sentences": sentences, "notes": notes}
