"""`ratchet evaluate`: a version on a panel, outside its run."""

import json as json_module
import sys
from contextlib import redirect_stdout
from typing import Any

from flows.commands import root, show
from flows.results import percent


def evaluate(
    version: str, env: str | None, panel: str, tasks: int | None, json: bool, guide: str | None = None, candidates: int = 4, meter: str | None = None
) -> None:
    """`ratchet evaluate`; progress goes to standard error, so that --json is JSON."""
    from flows.evaluating import evaluate_version

    with redirect_stdout(sys.stderr):
        result = evaluate_version(root(), version, env, panel, tasks, guide=guide, candidates=candidates, meter=meter)
    if json:
        print(json_module.dumps(result, indent=1, sort_keys=True))
        return
    played = "/".join(filter(None, (result["env"], result["pattern"])))
    print(f"{result['version']} on {result['n']} tasks of {played}, panel {panel}")
    print(f"success: {percent(result['success'])}  (95 % Wilson interval over tasks)")
    print(f"panel: {result['panel_hash'][:12]}, {result['errors']} environment errors, {_mean(result, 'steps')} steps a task")
    strata = result["by_stratum"]
    if len(strata) > 1:
        rows = [{"games of": name, "n": one["n"], "success": percent(one["success"])} for name, one in strata.items()]
        show(rows, ["games of", "n", "success"], False, "")
    print(f"outcomes: {result['outcomes']}")
    if guide is not None:
        from flows.guiding import lines

        print("\n".join(lines(result, percent)))


def _mean(result: dict[str, Any], name: str) -> str:
    return "no" if result[name] is None else f"{result[name]:.1f}"
