"""Pages about versions: the list with its lineage, one version, and two compared."""

from __future__ import annotations

from typing import Any

from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.page import charts, figures, lineage
from ratchet.page.charts import Mark, Panel, Tooth
from ratchet.page.figures import Figure
from ratchet.page.shelf import Shelf
from ratchet.page.words import between, between_signed, capital, number, percent, round_name, signed, stratum
from ratchet.store.browse import kept_of
from ratchet.store.cards import Card
from ratchet.store.champions import WARM, find
from ratchet.store.persons import reign
from ratchet.store.queries import PANELS, comparison_of, resolve_pair, row_of, same_panel
from ratchet.store.statuses import ACTOR, CHAMPION, kind_of, status

TEETH = 12  # versions of a chart; all are in the list
TONES = {"champion": "good", "candidate": "calm", "archived": "calm"}
MOST_FLIPS = 400


def versions(shelf: Shelf, line: str | None) -> dict[str, Any]:
    """Lines with their champions, and each line's versions, the newest first, beside the rails of where they come from."""
    champion_of = shelf.champions()
    cards = shelf.cards()
    lines = sorted({card["line"] for card in cards}, key=lambda name: (name not in champion_of, str(name)))
    shown = [name for name in lines if line in (None, name)]
    groups = [_group(shelf, name, cards, champion_of) for name in shown]
    return {"lines": lines, "line": line, "groups": groups, "waiting": [one for one in shelf.waiting() if one.line in shown]}


def _group(shelf: Shelf, line: str, cards: list[Card], champion_of: dict[str, str]) -> dict[str, Any]:
    own = [card for card in cards if card["line"] == line][::-1]
    rails = lineage.rails([(card["version"], card.get("parents") or []) for card in own])
    width = lineage.width_of(rails)
    rows = [
        row_of(card, champion_of) | {"rail": lineage.drawn(rails[card["version"]], width, lineage.tone_of(card, champion_of)), "card": card}
        for card in own
    ]
    champion = next((row for row in rows if champion_of.get(line) == row["version"]), None)
    return {"line": line, "rows": rows, "champion": champion, "rail": width * lineage.LANE, "chart": _chart(line, own, champion_of)}


def _chart(line: str, own: list[Card], champion_of: dict[str, str]) -> Figure | None:
    """Success on the confirm panel, version by version: those that played the champion's confirm panel, for others are not comparable."""
    champion = next((card for card in own if card["version"] == champion_of.get(line)), None)
    panel = _confirm(champion)["panel_hash"] if champion and _confirm(champion) else None
    measured = [card for card in own[::-1] if kind_of(card) == ACTOR and (entry := _confirm(card)) and entry["panel_hash"] == panel]
    if panel is None or len(measured) < 2:
        return None
    rank = {version: place for place, version in enumerate(reign(own, line))}
    success = {card["version"]: _confirm(card)["summary"]["success"] for card in measured}
    teeth, rows, at = [], [], None
    for card in measured:
        version, now = card["version"], status(card, champion_of)
        at = version if version in rank else at
        own_success = success[version]
        level = success[at]["mean"] if at else None
        values = (own_success["mean"], own_success["low"], own_success["high"])
        teeth.append(Tooth(version[:8], now, TONES[now] if now == CHAMPION else "calm", *values, champion=level, became=version in rank))
        rows.append([version, percent(own_success["mean"]), between(own_success), now])
    title = f"Success on the confirm panel, line {line}"
    desc = "; ".join(f"{row[0]}: {row[1]} ({row[2]}), {row[3]}" for row in rows[-TEETH:])
    note = "Dots: versions with 95\u202f% intervals, oldest first; hollow ones never became champion. The broad line is the champion's success."
    wide = charts.ratchet_chart(title, desc, teeth[-TEETH:], figures.whole, 880, 260)
    narrow = charts.ratchet_chart(title, desc, teeth[-3:], figures.whole, figures.NARROW, 240)
    return Figure(title, wide, ["Version", "Success", "95\u202f% interval", "Status"], rows, narrow, note)


def _confirm(card: Card | None) -> dict[str, Any]:
    found = [entry for entry in (card or {}).get("evaluations", []) if entry["panel"] == "confirm"]
    return max(found, key=lambda entry: entry["at"]) if found else {}


def version(shelf: Shelf, text: str) -> dict[str, Any]:
    """One version. Raises RatchetError for a text that means none."""
    champion_of = shelf.champions()
    card = find(shelf.registry, text)
    cards = {one["version"]: one for one in shelf.cards()}
    row = row_of(card, champion_of)
    current = champion_of.get(card["line"])
    before = [one for one in reign(shelf.cards(), card["line"]) if one != current]
    return {
        "card": card,
        "row": row,
        "evaluations": sorted(card["evaluations"], key=lambda entry: (PANELS.index(entry["panel"]) if entry["panel"] in PANELS else 9, entry["at"])),
        "decisions": sorted(card["decisions"], key=lambda entry: entry["at"], reverse=True),
        "lineage": lineage.ancestors(cards, card["version"], champion_of),
        "children": [row_of(one, champion_of) for one in lineage.children(cards, card["version"])],
        "champion": current,
        "waits": next((one for one in shelf.waiting() if one.version == card["version"]), None),
        "before": before[-1] if before else None,
        "champion_of": sorted(line for line, one in champion_of.items() if one == card["version"]),
    }


def compare(shelf: Shelf, a: str | None, b: str | None, panel: str) -> dict[str, Any]:
    """Two versions on a panel. What cannot be compared comes back as `problem`, one line that names the way out."""
    champion_of = shelf.champions()
    rows = [row_of(card, champion_of) for card in shelf.cards()[::-1] if kind_of(card) == ACTOR]
    line = next((row["line"] for row in rows if row["status"] == CHAMPION), None)
    view: dict[str, Any] = {"rows": rows, "a": a or WARM, "b": b or "champion", "panel": panel, "result": None, "problem": None, "things": "tasks"}
    if not rows:
        return view | {"problem": "there are no versions yet; `ratchet run` makes the first ones"}
    if a is None and b is None and len(champion_of) > 1:
        view["b"] = f"champion:{line}"
    try:
        card_a, card_b = resolve_pair(shelf.root, view["a"], view["b"], None)
        view |= {"a": card_a["version"], "b": card_b["version"]}
        key = f"comparison {card_a['version']} {card_b['version']} {panel}"
        pair = same_panel(shelf.root, card_a, card_b, panel)
        cards = [shelf.registry / f"{card['version']}.json" for card in (card_a, card_b)]
        view["result"] = shelf.kept(key, [*cards, *(pair or ())], lambda: comparison_of(shelf.root, view["a"], view["b"], panel))
    except RatchetError as error:
        return view | {"problem": str(error)}
    result = view["result"]
    return view | {
        "card_a": row_of(card_a, champion_of),
        "card_b": row_of(card_b, champion_of),
        "by_type": _by_type(result),
        "said": _said(result),
        "flips": _flips(shelf, result, pair),
    }


def _said(result: dict[str, Any]) -> str:
    gain = result["gain"]
    if gain["low"] > 0:
        return "B is measurably better: the interval of the gain lies above zero."
    if gain["high"] < 0:
        return "B is measurably worse: the interval of the gain lies below zero."
    return "No difference is shown: the interval of the gain includes zero."


def _by_type(result: dict[str, Any]) -> Figure:
    strata = result["by_stratum"]
    kinds = sorted(strata, key=stratum)
    gains = [[Mark("gain", "c-gain", one["gain"]["mean"], one["gain"]["low"], one["gain"]["high"])] if one.get("gain") else [] for one in map(strata.get, kinds)]
    text = lambda mark: f"{signed(mark.value)} ({signed(mark.low)} to {signed(mark.high)})"
    panel = Panel("paired gain of B over A, points", lambda value: signed(value, 0), gains, zero=True, span=text)
    names = [f"{stratum(kind)} ({strata[kind]['n']})" for kind in kinds]
    rows = [
        [stratum(kind), number(strata[kind]["n"]), percent(_mean(strata[kind]["a"])), percent(_mean(strata[kind]["b"])),
         signed(strata[kind]["gain"]["mean"]), between_signed(strata[kind]["gain"])]
        for kind in kinds
    ]  # fmt: skip
    title = "Gain by task type"
    desc = "; ".join(f"{row[0]}: A {row[2]}, B {row[3]}, gain {row[4]} ({row[5]})" for row in rows)
    wide, narrow = (charts.interval_chart(title, desc, names, [panel], width) for width in (880, figures.NARROW))
    return Figure(title, wide, ["Task type", "n", "A", "B", "Gain", "interval"], rows, narrow, "In brackets: number of tasks.")


def _mean(value: Any) -> float | None:
    return value["mean"] if isinstance(value, dict) else value


def _flips(shelf: Shelf, result: dict[str, Any], pair: Any) -> list[dict[str, Any]]:
    """Gained and lost tasks, each with the episodes of both versions where they are kept."""
    played: list[dict[str, list[str]]] = [{}, {}]
    for by_task, path in zip(played, pair or (), strict=False):
        for row in read_table(path, "outcomes", ["task_id", "sample", "episode_id"]).to_pylist():
            by_task.setdefault(row["task_id"], []).append(row["episode_id"])
    shown = {name: result["flips"][name][:MOST_FLIPS] for name in ("gained", "lost")}
    ids = [one for tasks in shown.values() for task in tasks for by_task in played for one in by_task.get(task, [])]
    kept = kept_of(shelf.engine, shelf.checkout, ids)
    groups = []
    for name, title in (("gained", "Solved by B only"), ("lost", "Solved by A only")):
        of_both = [[[one for one in by_task.get(task, []) if one in kept] for by_task in played] for task in shown[name]]
        tasks = [{"task": task, "a": a, "b": b} for task, (a, b) in zip(shown[name], of_both, strict=True)]
        groups.append({"title": title, "tasks": tasks, "left": len(result["flips"][name]) - len(tasks), "kept": bool(kept)})
    return groups


def option(row: dict[str, Any]) -> str:
    """How a version is offered in a list of choices."""
    return f"{row['version']} · {capital(round_name(row['round']))} · {row['status']} · {row['line']}"
