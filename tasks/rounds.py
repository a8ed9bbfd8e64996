"""What the stages of a round share that learn from its data."""

from __future__ import annotations

import shutil
from pathlib import Path

from ratchet.files import read_json, write_json
from tasks.common import SKIPPED, Stage, say, skipped, stop_reason

OFFLINE_NOTE = "offline.json"  # beside the weights that an offline update made: what it did; the gates of the stop rule read it
OFFLINE = "offline"  # the name of its result among a round's candidates


def hold_up(stage: Stage) -> str | None:
    """Why nothing may be learned in this round: the run has stopped, or a check of the round's data failed and nobody waived it."""
    from monitoring.waivers import apply_waivers, fails, read_waivers

    assert stage.key is not None
    base = stage.path(f"data/rounds/{stage.key}/check")
    if reason := stop_reason(stage, stage.settings.rounds[stage.key].prev) or skipped(base):
        return reason
    verdict = apply_waivers(read_json(base / "verdict.json"), read_waivers(stage.path("waivers.yaml")))
    failed = [one["name"] for one in verdict["checks"] if fails(one)]
    return f"the harvest failed {', '.join(failed)}" if failed else None


def offline_candidate(stage: Stage) -> Path | None:
    """What this round's offline update made, which the online round goes on from; None where there was none."""
    folder = stage.path(f"models/rounds/{stage.key}/offline")
    return folder if (folder / OFFLINE_NOTE).is_file() else None


def keep_candidates(stage: Stage, folders: dict[str, Path]) -> None:
    """Writes the round's candidates, the offline update's first."""
    out = f"models/rounds/{stage.key}/candidates"
    offline = offline_candidate(stage)
    named = ({OFFLINE: offline} if offline is not None else {}) | folders
    for name, folder in named.items():
        shutil.copytree(folder, stage.out(f"{out}/{name}"))
    write_json(stage.out(f"{out}/candidates.json"), list(named))


def without_online(stage: Stage) -> None:
    """A round whose only candidate is the offline update's."""
    reason = "evolve_online is off"
    if offline_candidate(stage) is None:
        return stage.skip(f"{reason}, and so was the offline update in this round")
    for folder in (f"data/rounds/{stage.key}/online", f"data/rounds/{stage.key}/replay"):
        write_json(stage.out(f"{folder}/{SKIPPED}"), {"skipped": reason})
    keep_candidates(stage, {})
    stage.metrics({"skipped": reason, "curve": [], "candidates": [OFFLINE]})
    say(f"{stage.title}: {reason}; the offline update is the round's candidate")
    stage.finish()
