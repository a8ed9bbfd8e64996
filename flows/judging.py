"""`ratchet step-quality`: what a meter says of the steps of somebody's labelled trajectories."""

import json as json_module
from pathlib import Path

from ratchet.evaluation.step_quality import read_process_bench
from ratchet.meter.meter import Meter
from ratchet.meter.process_bench import judge_records


def step_quality(file: Path, meter: Path, validation: Path | None, delta: str, json: bool) -> None:
    """`ratchet step-quality`. Raises RatchetError for a file of another form and a folder without a meter."""
    records = read_process_bench(file)
    tuning = read_process_bench(validation) if validation is not None else []
    found = judge_records(Meter.load(meter), records, tuning, "td" if delta == "td" else "paper")
    if json:
        print(json_module.dumps(found, indent=1, sort_keys=True))
        return
    tuned = f"dead zone {found['dead_zone']:.4g}, tuned on {validation}" if tuning else "no dead zone: give --validation FILE to tune one"
    print(f"{found['steps']} steps of {found['trajectories']} trajectories ({tuned}; {found['too_long']} did not fit the meter's context)")
    for name, text in (
        ("accuracy", "better, neutral or worse"), ("balanced_accuracy", "balanced over the three"),
        ("signed_accuracy", "of steps that are not neutral"), ("signed_balanced_accuracy", "balanced over both directions"),
    ):  # fmt: skip
        value = found[name]
        print(f"  {'–' if value is None else f'{100 * value:5.1f} %'}  {text}")
