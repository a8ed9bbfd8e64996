"""Distances between two samples, as statistical tests of Evidently's registry: its own, and four that it lacks.

Evidently's tests change with the sample size unless they are named; here every column has its one method (drift_columns.py).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from functools import cache
from typing import Any

import numpy as np

from monitoring.imports import without_collections
from ratchet.errors import RatchetError
from ratchet.samples import effective_share, ranks

NUMBERS, KINDS = "num", "cat"  # Evidently's names of column types
MAX_LOG_RATIO = 50.0  # a ratio beyond e^50 is infinite for all purposes


@cache
def stattests() -> Any:
    """Evidently's package of statistical tests, with ours registered.

    `import evidently` also imports its web server, its clients of language models and all of its metrics, for several seconds;
    only the tests are wanted here. So the package's own folder stands in for its `__init__`, unless something imported that already.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")  # read when it is imported; no telemetry from a pipeline
    before = sys.modules.get("evidently")
    if before is None:
        sys.modules["evidently"] = _package("evidently")
    try:
        with without_collections():
            found = importlib.import_module("evidently.legacy.calculations.stattests")
        _register(found)
    finally:
        if before is None:  # whoever imports Evidently after this gets all of it
            del sys.modules["evidently"]
    return found


def _package(name: str) -> types.ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise RatchetError(f"drift: {name} is not installed; install Ratchet's dependencies again (`make install`), or set drift.enabled to false")
    bare = types.ModuleType(name)
    bare.__path__ = list(spec.submodule_search_locations)
    bare.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    bare.__spec__.submodule_search_locations = bare.__path__
    return bare


def _register(found: Any) -> None:
    for name, text, function in (
        ("rate_difference", "difference of rates", rate_difference),
        ("effective_samples", "effective share of samples, ESS / N", lambda reference, current: effective_samples(current)),
        ("k3", "KL, k3 estimator", lambda reference, current: k3(current)),
        ("domain_auc", "AUC of a domain classifier", auc),
    ):
        types_ = [importlib.import_module("evidently.legacy.core").ColumnType.Numerical]
        test = found.StatTest(name=name, display_name=text, allowed_feature_types=types_)
        found.register_stattest(test, _as_evidently(function))


def _as_evidently(function: Any) -> Any:
    """(reference, current, kind of column, threshold) → (score, drifted), which is how Evidently calls a test."""

    def test(reference: Any, current: Any, kind: Any, threshold: float) -> tuple[float, bool]:
        value = function(np.asarray(reference, float), np.asarray(current, float))
        return value, value >= threshold

    return test


def score(method: str, reference: np.ndarray, current: np.ndarray) -> float:
    """How far `current` [N] is from `reference` [M], by Evidently's test `method`; what it says of a threshold is not used."""
    import pandas as pd

    kind = KINDS if method == "jensenshannon" else NUMBERS
    first, second = pd.Series(reference), pd.Series(current)
    test = stattests().get_stattest(first, second, kind, method)
    feature = importlib.import_module("evidently.legacy.core").ColumnType(kind)
    found = float(test(reference_data=first, current_data=second, feature_type=feature, threshold=0.0).drift_score)
    return 0.0 if np.isnan(found) else found


def rate_difference(reference: np.ndarray, current: np.ndarray) -> float:
    """|mean(current) − mean(reference)| of values 0 and 1; 0 where a side has none."""
    return float(abs(current.mean() - reference.mean())) if len(reference) and len(current) else 0.0


def effective_samples(log_ratios: np.ndarray) -> float:
    """(Σ r)² / (N Σ r²) with r = exp(log-ratio): the share of N samples that still count (Kong 1992). 1 where there are none."""
    if not len(log_ratios):
        return 1.0
    return effective_share(np.exp(log_ratios - log_ratios.max()))


def k3(log_ratios: np.ndarray) -> float:
    """mean(r − 1 − log r), r = exp(log-ratio): KL of the policy that sampled from the other one, never negative (Schulman 2020)."""
    return float(np.mean(np.expm1(np.minimum(log_ratios, MAX_LOG_RATIO)) - log_ratios)) if len(log_ratios) else 0.0


def auc(reference: np.ndarray, current: np.ndarray) -> float:
    """P(a score of `current` is above one of `reference`), ties half: 0.5 where they cannot be told apart."""
    if not len(reference) or not len(current):
        return 0.5
    of_current = ranks(np.concatenate([reference, current]))[len(reference) :]
    wins = of_current.sum() - len(current) * (len(current) + 1) / 2
    return float(wins / (len(reference) * len(current)))
