"""`ratchet evaluate --guide meter`: the same tasks once more, a meter choosing among candidates, and the steps that both took."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from ratchet.episodes.files import write_table
from ratchet.errors import RatchetError
from ratchet.evaluation.compare import compare
from ratchet.evaluation.panels import Panel
from ratchet.evaluation.summary import summarise
from ratchet.files import read_json, write_json
from tasks.common import SKIPPED, Stage
from tasks.evaluate import play_policy
from tasks.rollouts import model_spec

LEVEL, RESAMPLES = 0.95, 10_000
ROWS = 32  # episodes at a time: each has several candidates


def check_guide(guide: str | None, candidates: int) -> None:
    """Raises RatchetError for a guide that there is not, or too few candidates."""
    if guide not in (None, "meter"):
        raise RatchetError(f"--guide {guide}: there is no such guide; write `--guide meter`, or leave it out")
    if candidates < 2:
        raise RatchetError(f"--candidates {candidates}: leaves nothing to choose; give at least 2")


def meter_folder(run: Path, given: str | None) -> Path:
    """The meter to guide with: the given folder, else the run's newest."""
    if given is not None:
        return Path(given)
    rounds = sorted((run / "models" / "rounds").glob("*/meter"), key=lambda path: int(path.parent.name))
    found = [path for path in rounds if not (path / SKIPPED).is_file() and (path / "meter.json").is_file()]
    if not found:
        raise RatchetError(f"--guide meter: {run} fitted no meter; name one with --meter FOLDER, or run with evolve_online.meter.enabled=true")
    return found[-1]


def play_guided(stage: Stage, model: Path, meter: Path, panel: Panel, name: str, candidates: int, games: Path, transfer: bool) -> tuple[pa.Table, dict[str, Any]]:
    """(outcomes, environment steps) of a model folder under guidance; what was played before a kill is not played again."""
    from ratchet.meter.guidance import GuidedPolicy
    from ratchet.meter.lookahead import Steps, lookahead_of
    from ratchet.meter.meter import Meter, card_of, check_environment

    env = stage.settings.env
    check_environment(card_of(meter), env.name, transfer, str(meter))
    rows = min(ROWS, stage.settings.evaluate.shard)
    spec = model_spec(model, stage.settings, policy_id=stage.settings.actor, rows=rows, temperature=stage.settings.evaluate.temperature)
    kept = stage.scratch / f"guided-{card_of(meter)['version']}-{candidates}.json"
    with lookahead_of(env, games, panel.name, candidates) as lookahead:
        if kept.is_file():
            lookahead.steps.update({key: Steps(**value) for key, value in read_json(kept).items()})
        policy = GuidedPolicy(spec, Meter.load(meter), lookahead, candidates=candidates)

        def accept(steps: pa.Table) -> None:
            write_json(kept, {key: asdict(value) for key, value in lookahead.steps.items()})

        title = f"{name} guided {candidates} {card_of(meter)['version']}"
        outcomes, episodes, _ = play_policy(stage, policy, panel, title, accept, rows=rows)
        steps = [lookahead.steps.get(one, Steps()) for one in episodes["episode_id"].to_pylist()]  # one whose reset failed never began
    return outcomes, {"env_steps": sum(one.tried for one in steps), "replayed_steps": sum(one.replayed for one in steps)}


def guided(stage: Stage, model: Path, meter: Path, panel: Panel, name: str, candidates: int, games: Path, natural: pa.Table, folder: Path) -> dict[str, Any]:
    """What guidance does on a panel, beside the outcomes of the same version by itself."""
    transfer = stage.settings.evolve_online.meter.transfer
    outcomes, steps = play_guided(stage, model, meter, panel, name, candidates, games, transfer)
    write_table(folder / "guided.parquet", "outcomes", outcomes)
    gain = compare(natural, outcomes, level=LEVEL, resamples=RESAMPLES)["gain"]
    return {
        "guide": "meter",
        "meter": read_json(meter / "meter.json")["version"],
        "candidates": candidates,
        "guided": summarise(outcomes),
        "guided_minus_natural": gain,
        "natural_env_steps": sum(natural["n_steps"].to_pylist()),
        "guided_env_steps": steps["env_steps"],
        "replayed_env_steps": steps["replayed_steps"],
        "guided_outcomes": str(folder / "guided.parquet"),
    }


def lines(result: dict[str, Any], percent: Any) -> Sequence[str]:
    """The result for a person."""
    one, gain = result["guided"], result["guided_minus_natural"]
    replayed = f", {result['replayed_env_steps']:,} more to replay" if result["replayed_env_steps"] else ""
    return [
        f"guided by meter {result['meter']}, {result['candidates']} candidates: {percent(one['success'])}",
        f"guided − natural: {100 * gain['mean']:+.1f} points [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]",
        f"environment steps: {result['natural_env_steps']:,} natural, {result['guided_env_steps']:,} guided{replayed}",
        f"guided outcomes: {result['guided_outcomes']}",
    ]
