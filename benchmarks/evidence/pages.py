"""Results as a person reads them: a table in Markdown and curves as SVG, drawn with the charts of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evidence.cells import Store, flat
from benchmarks.evidence.run import Found
from benchmarks.evidence.statistics import Difference, curve_of, paired
from ratchet.page.charts import Line, line_chart

COLOURS = ("#0d7a6f", "#b3541e", "#4459a8", "#8a2d62", "#5d7a0d", "#7a5c0d", "#3a3a3a", "#b32e2e", "#2e86b3", "#6b4fa0")
GATES = {"accuracy": "accuracy", "majority": "majority class", "ece": "calibration error", "sign": "direction of steps", "unparsable": "do not parse"}
STYLE = """<style>
svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#222}.soft{fill:#666}.grid{stroke:#e4e4e4}.rule{stroke:#bbb}
.series{fill:none;stroke-width:2}.label{font-weight:600}
%s</style>"""


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Markdown; numbers are given as texts."""
    lines = [f"| {' | '.join(headings)} |", f"| {' | '.join('---' for _ in headings)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)]) + "\n"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def points(mean: float, low: float, high: float) -> str:
    """A difference in points with its interval."""
    return f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def all_runs(found: Found) -> str:
    """Every run there was, the settings tried included: nothing is left out because of how it came out."""
    rows: list[list[Any]] = []
    for arm, entries in found.tuned.items():
        for entry in entries:
            chosen = "chosen" if entry["set"] == found.choices[arm] else ""
            rows.append([arm, f"tuning, {found.protocol.rules.tuning.panel}", _told(entry["set"]), percent(entry["success"]), chosen])
    for arm, results in found.cells.items():
        kind = f"{found.protocol.rules.final.panel}, seed "
        for one in results:
            rows.append([arm, f"{kind}{one['seed']}", _told(found.choices[arm]), percent(one["panel"]["success"]), f"{one['seconds']:.0f} s"])
    return table(["arm", "panel", "chosen settings", "success", ""], rows)


def _told(differences: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.removeprefix('evolve_online.')} {value}" for key, value in flat(differences)) or "as written"


def write_curves(folder: Path, name: str, found: Found, arms: Sequence[str], title: str) -> list[Path]:
    """Two plots, success of the rollouts against environment steps and against generated tokens."""
    written = []
    curves = {arm: curve_of(found.cells[arm]) for arm in arms}
    for axis, what in (("env_steps", "environment steps"), ("generated_tokens", "generated tokens")):
        lines = [
            Line(found.protocol.rules.arms[arm].label, f"arm{place}", [[*zip(getattr(curve, axis).tolist(), curve.success.tolist(), strict=True)]])
            for place, (arm, curve) in enumerate(curves.items())
        ]
        seeds = {arm: len(found.cells[arm]) for arm in arms}
        desc = f"Success of the rollouts, running mean of 3 iterations, mean over seeds ({', '.join(f'{arm} {n}' for arm, n in seeds.items())})."
        chart = line_chart(f"{title}: success against {what}", desc, lines, percent, _thousands, x_label=what, width=720, height=360)
        path = folder / f"{name}-{axis.replace('_', '-')}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_alone(str(chart), len(lines)), encoding="utf-8")
        written.append(path)
    return written


def curves(folder: Path, name: str, found: Found, arms: Sequence[str], title: str) -> list[str]:
    """The same plots as they stand in a page, of those `arms` that were run."""
    shown = [arm for arm in arms if arm in found.cells]
    files = write_curves(folder, name, found, shown, title) if shown else []
    return [f"![{file.stem.replace('-', ' ')}]({file.name})\n" for file in files]


def gates(found: Found) -> list[str]:
    """What the gates said of the meters of all arms, one row a meter: where an arm has several, of each seed and round."""
    rows: list[list[Any]] = []
    for arm, results in found.cells.items():
        label = label_of(found, arm)
        asked = [(one["seed"], point) for one in results for point in one["curve"] if "meter_gate_passed" in point]
        own = [[f"{label}, seed {seed}, round {point['iteration']}", *_verdict(point)] for seed, point in asked]
        shared = len({tuple(verdict) for _, *verdict in own}) == 1
        rows += [[label, *own[0][1:]]] if shared else own
    return [table(["meter of", "gate", *GATES.values()], rows)] if rows else []


def _verdict(point: Mapping[str, Any]) -> list[str]:
    values = [point.get(f"meter_gate_{key}") for key in GATES]
    return ["open" if point["meter_gate_passed"] else "shut", *("" if value is None else f"{value:.3f}" for value in values)]


def _alone(svg: str, lines: int) -> str:
    """A chart of the report as a file of its own: with a name space and colours."""
    chosen = [COLOURS[at % len(COLOURS)] for at in range(lines)]
    colours = "".join(f".series.arm{at}{{stroke:{one}}}.label.arm{at}{{fill:{one}}}\n" for at, one in enumerate(chosen))
    start, _, rest = svg.partition(">")
    return f'{start} xmlns="http://www.w3.org/2000/svg">{STYLE % colours}{rest}\n'


def _thousands(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def label_of(found: Found, arm: str) -> str:
    one = found.protocol.rules.arms[arm]
    return one.label + (" (smoke run)" if one.smoke else "")


def difference(found: Found, store: Store, base: str | np.ndarray, arm: str) -> Difference:
    """Success of `arm` less that of `base`, an arm or outcomes [S, T], on the seeds that both have."""
    before, after = found.marks(base) if isinstance(base, str) else base, found.marks(arm)
    _, clusters = store.panel(found.cells[arm][0]["panel"]["hash"])
    seeds = min(len(before), len(after))
    return paired(before[:seeds], after[:seeds], clusters)


def each_seed(gap: Difference) -> str:
    """What each seed says alone, in points."""
    return ", ".join(f"{100 * one:+.1f}" for one in gap.by_seed)


def mean_success(found: Found, arm: str, where: np.ndarray | None = None) -> float:
    """Over seeds and tasks, or over the tasks of the mask."""
    solved = found.marks(arm)
    return round(float(solved.mean() if where is None else solved[:, where].mean()), 4)
