"""The stop rule between rounds: reads what the round left, and writes what the next one needs to judge by (`loop.stop`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.episodes.files import read_table, write_table
from ratchet.evaluation.summary import selected
from ratchet.files import read_json
from tasks.common import Stage, skipped
from tasks.rounds import OFFLINE_NOTE

if TYPE_CHECKING:
    import pyarrow as pa

    from ratchet.evaluation.stopping import Measured

BEST = "best.parquet"  # outcomes on `select` of the best round so far


def after_round(stage: Stage, before: dict[str, Any]) -> dict[str, Any] | None:
    """What `ratchet.evaluation.stopping.judged` says of the round, the best round on `select` (`best`) and the best one before it
    (`best_before`); None where the rule is off. Writes the outcomes of the best one beside the decision. `before` is the decision of the
    round before. There is nothing to stop behind the last round.
    """
    from ratchet.evaluation.stopping import Limits, chance_of_gain, fired, judged

    own = stage.settings.loop.stop
    if not own.enabled:
        return None
    assert stage.key is not None
    prev = stage.settings.rounds[stage.key].prev
    base = stage.path("data/rounds")
    evaluation = read_json(base / stage.key / "evaluation" / "evaluation.json")
    best_before = (before.get("stopping") or {}).get("best") or _of(read_json(base / prev / "evaluation" / "evaluation.json"))
    kept = base / prev / "decision" / BEST
    old = read_table(kept, "outcomes") if kept.is_file() else _outcomes(base / prev)
    new = _outcomes(base / stage.key)
    limits = Limits(**{name: value for name, value in own.model_dump().items() if name != "enabled"})
    seen = measured(stage, prev)
    found = judged(before.get("stopping"), chance_of_gain(old, new, own.min_gain, own.resamples), fired(seen, limits), limits)
    now = _of(evaluation)
    is_best = now["select"] > best_before["select"]
    write_table(stage.out(f"data/rounds/{stage.key}/decision/{BEST}"), "outcomes", new if is_best else old)
    if stage.key == stage.settings.last:
        found["stop"] = None
    return {**found, "best": now if is_best else best_before, "best_before": best_before, "measured": vars(seen)}


def measured(stage: Stage, prev: str) -> Measured:
    """The gates' numbers of a round, from its critic, its offline update and what was played on `confirm`."""
    from ratchet.evaluation.stopping import Measured, jensen_shannon

    base = stage.path(f"data/rounds/{stage.key}")
    note, fit = stage.path(f"models/rounds/{stage.key}/offline/{OFFLINE_NOTE}"), base / "critic" / "fit.json"
    offline = read_json(note) if note.is_file() else {}
    errors = read_json(fit)["td_error"] if fit.is_file() and skipped(base / "critic") is None else {}
    held_out, fitted = errors.get("held_out"), errors.get("fitted")
    mixes = [_actions(folder) for folder in (stage.path(f"data/rounds/{prev}"), base)]
    return Measured(
        ess=offline.get("ess"),
        kl=offline.get("kl"),
        td_ratio=held_out / fitted if held_out is not None and fitted else None,
        action_shift=jensen_shannon(*mixes) if all(mixes) else None,
    )


def _of(evaluation: dict[str, Any]) -> dict[str, Any]:
    return {"round": evaluation["round"], "version": evaluation["version"], "select": selected(evaluation)}


def _outcomes(folder: Path) -> pa.Table:
    name = read_json(folder / "evaluation" / "evaluation.json")["selected"]
    return read_table(folder / "evaluation" / f"select-{name}.parquet", "outcomes")


def _actions(folder: Path) -> list[str]:
    path = folder / "evaluation" / "steps.parquet"
    return [one for one in read_table(path, "steps", ["action_type"])["action_type"].to_pylist() if one] if path.is_file() else []
