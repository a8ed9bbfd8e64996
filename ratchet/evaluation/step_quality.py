"""Does the direction of a step's Δ agree with what is known of the step? (AgentProcessBench's form, methods §3)

Labels are 1, 0 and −1. What a meter says is sign(Δ), 0 within a dead zone that is tuned on other labels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.errors import RatchetError

CLASSES = (-1, 0, 1)


def direction(delta: np.ndarray, dead_zone: float = 0.0) -> np.ndarray:
    """sign(Δ), 0 where |Δ| ≤ the dead zone; int [N]."""
    return np.where(np.abs(delta) <= dead_zone, 0, np.sign(delta)).astype(int)


def three_way(delta: np.ndarray, labels: np.ndarray, dead_zone: float) -> float:
    """Micro accuracy over all three classes."""
    return float(np.mean(direction(delta, dead_zone) == labels))


def balanced_accuracy(delta: np.ndarray, labels: np.ndarray, dead_zone: float, classes: Sequence[int] = CLASSES) -> float | None:
    """Mean of each class's recall, over the classes that there are; None where there is none of them."""
    said = direction(delta, dead_zone)
    recalls = [float(np.mean(said[labels == one] == one)) for one in classes if np.any(labels == one)]
    return float(np.mean(recalls)) if recalls else None


def signed(delta: np.ndarray, labels: np.ndarray) -> tuple[float | None, float | None]:
    """(accuracy, balanced accuracy) on the steps whose label is 1 or −1: does Δ point the right way? Δ = 0 is a coin's worth, a half.

    None where there are no such steps; the balanced one also where one of the two labels is missing.
    """
    right = np.where(delta == 0, 0.5, (np.sign(delta) == labels).astype(float))
    both = [right[labels == one] for one in (-1, 1)]
    found = np.concatenate(both)
    if not len(found):
        return None, None
    return float(found.mean()), float(np.mean([one.mean() for one in both])) if all(len(one) for one in both) else None


def tune_dead_zone(delta: np.ndarray, labels: np.ndarray) -> float:
    """The dead zone with the best balanced accuracy, the smallest of equals; among 0 and 64 quantiles of |Δ|."""
    if not len(delta):
        return 0.0
    zones = np.unique(np.concatenate([[0.0], np.quantile(np.abs(delta), np.linspace(0, 1, 65))]))
    scores = [balanced_accuracy(delta, labels, zone) or 0.0 for zone in zones]
    return float(zones[int(np.argmax(scores))])


def step_quality(delta: np.ndarray, labels: np.ndarray, tuning: tuple[np.ndarray, np.ndarray] | None = None) -> dict[str, Any]:
    """All of it as numbers; the dead zone is tuned on `tuning`'s (Δ, labels), by default 0."""
    zone = tune_dead_zone(*tuning) if tuning is not None else 0.0
    micro, balanced = signed(delta, labels)
    return {
        "steps": len(delta),
        "dead_zone": zone,
        "accuracy": three_way(delta, labels, zone) if len(delta) else None,
        "balanced_accuracy": balanced_accuracy(delta, labels, zone),
        "signed_accuracy": micro,
        "signed_balanced_accuracy": balanced,
        "counts": {str(one): int(np.sum(labels == one)) for one in CLASSES},
    }


@dataclass(frozen=True)
class Record:
    """One trajectory: (observation, reply) of each assistant step, its label, and whether the whole succeeded."""

    id: str
    turns: list[tuple[str, str]]
    labels: np.ndarray  # int [T]
    solved: bool


def read_process_bench(path: Path) -> list[Record]:
    """Trajectories of a JSONL file in AgentProcessBench's form: `messages`, and `step_labels`, which gives the label of each assistant
    message by its index; `final_label` 1 is a success. What is said between two assistant messages is read as one observation.

    Raises RatchetError, naming the line, for what is in another form.
    """
    if not path.is_file():
        raise RatchetError(f"{path}: no such file; give a JSONL file of AgentProcessBench's form")
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                found.append(_record(json.loads(line), str(number)))
            except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise RatchetError(
                    f"{path}:{number}: is not of AgentProcessBench's form ({type(error).__name__}: {error}); a line holds `messages` and "
                    "`step_labels` {index of an assistant message: -1, 0 or 1}"
                ) from None
    if not found:
        raise RatchetError(f"{path}: holds no trajectory")
    return found


def _record(values: dict[str, Any], name: str) -> Record:
    labels = {int(place): int(label) for place, label in values["step_labels"].items()}
    said: list[str] = []
    turns, signs = [], []
    for place, message in enumerate(values["messages"]):
        text = _text(message)
        if message["role"] != "assistant":
            said.append(text)
            continue
        if place in labels:
            turns.append(("\n\n".join(said), text))
            signs.append(labels[place])
            said = []
        else:
            said.append(text)  # a step that nobody judged is part of what came before
    if unused := set(labels) - {place for place, message in enumerate(values["messages"]) if message["role"] == "assistant"}:
        raise ValueError(f"step_labels {sorted(unused)} are no messages of the assistant")
    if set(signs) - set(CLASSES) or not turns:
        raise ValueError("labels have to be -1, 0 or 1, at least one")
    parts = [str(values[key]) for key in ("data_source", "query_index", "sample_index") if key in values]
    return Record(":".join(parts) or str(values.get("record_id", name)), turns, np.array(signs, int), int(values.get("final_label", 0)) == 1)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    calls = [json.dumps(call.get("function", call), ensure_ascii=False, sort_keys=True) for call in message.get("tool_calls") or []]
    return "\n".join([*([text] if text else []), *calls])
