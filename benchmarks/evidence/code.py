"""What of the code a result depends on, as a hash that comments, docstrings and layout do not change."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from benchmarks.evidence.workspaces import CHECKOUT
from ratchet.files import sha256_json

FOLDERS = ("credit", "engines", "episodes", "learners", "losses", "models", "policies", "rollout")
FILES = ("ratchet/envs/base.py", "ratchet/envs/pool.py", "ratchet/envs/worker.py")
STAGES = ("demonstrate", "evaluate", "evolve_online", "forecasts", "online_rollouts", "parts", "prepare", "replays", "rollouts", "warm_start")
CRITIC = ("ratchet/critic", "ratchet/samples.py", "tasks/buffer.py", "tasks/fit_critic.py", "tasks/evolve_offline.py", "tasks/rounds.py")
"""What a cell with a buffer depends on besides."""
METER = ("ratchet/meter", "tasks/fit_meter.py", "tasks/step_credit.py", "tasks/harvest.py")
"""What a cell with a meter does."""


def code_version(environment: Iterable[Path], more: Iterable[str] = ()) -> str:
    """Of all that plays and learns, of the environment's own files, and of `more` files and folders."""
    others = [path for name in more for path in (sorted((CHECKOUT / name).rglob("*.py")) if (CHECKOUT / name).is_dir() else [CHECKOUT / name])]
    paths = [path for folder in FOLDERS for path in sorted((CHECKOUT / "ratchet" / folder).rglob("*.py"))]
    paths += [CHECKOUT / name for name in FILES] + [CHECKOUT / "tasks" / f"{name}.py" for name in STAGES]
    return sha256_json([meaning(path.read_text(encoding="utf-8")) for path in [*paths, *environment, *others]])[:12]


@cache
def meaning(source: str) -> str:
    """The program without what a reader alone needs."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
