"""The test panel, touched once: the champion of the run against the warm start."""

from __future__ import annotations

from typing import Any

from ratchet.episodes.files import write_table
from ratchet.evaluation.compare import compare
from ratchet.evaluation.panels import read_panel
from ratchet.evaluation.summary import summarise
from ratchet.files import read_json, write_json
from tasks.common import Stage, main, say
from tasks.evaluate import play_panel

LEVEL = 0.95


def run(stage: Stage) -> None:
    """Writes data/final."""
    decision = read_json(stage.path(f"data/rounds/{stage.settings.last}/decision/decision.json"))
    panel = read_panel(stage.path("data/panels/test.json"))
    stage.call_players()
    out = stage.out("data/final")
    champion, episodes, steps = play_panel(stage, stage.path(f"models/rounds/{stage.settings.last}/champion"), panel, "champion")
    same = decision["champion"]["round"] == 0  # one version has one result: it is played once
    warm = champion if same else play_panel(stage, stage.path("models/rounds/0/version"), panel, "warm start")[0]
    write_table(out / "warm.parquet", "outcomes", warm)
    write_table(out / "champion.parquet", "outcomes", champion)
    write_table(out / "episodes.parquet", "episodes", episodes)
    write_table(out / "steps.parquet", "steps", steps)
    result: dict[str, Any] = {
        "warm": summarise(warm),
        "champion": summarise(champion),
        "comparison": compare(warm, champion, level=LEVEL, resamples=stage.settings.final.resamples),
        "champion_round": decision["champion"]["round"],
        "same": same,
    }
    write_json(out / "final.json", result)
    stage.metrics(result)
    gain = result["comparison"]["gain"]
    say(f"final: gain {100 * gain['mean']:+.1f} points ({100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}) on {result['comparison']['n']} games")
    stage.finish()


if __name__ == "__main__":
    main("final", run)
