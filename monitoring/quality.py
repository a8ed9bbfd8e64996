"""Is this data what it says it is? A Great Expectations suite on episodes, steps and labels, with a verdict as JSON.

Rules that need several columns or tables are computed as boolean columns (named like their check) over whole columns;
Great Expectations then validates those and the plain columns. The verdict holds no clock and no path: the same rows give
the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from monitoring.imports import great_expectations
from monitoring.quality_checks import CHECKS, LIMITS, Check, nearest
from monitoring.quality_columns import SHOWN_ROWS, Frames, fill
from monitoring.quality_results import Results, buffer_columns, outcome_columns, panel_columns, profile, shifts
from monitoring.waivers import passes
from ratchet.episodes.schema import KINDS
from ratchet.errors import RatchetError

if TYPE_CHECKING:
    import pandas as pd

def run_suite(
    episodes: pa.Table,
    steps: pa.Table,
    labels: pa.Table | None,
    *,
    limits: Mapping[str, float],
    panels: Mapping[str, set[str]] | None,
    replay: Mapping[str, Any] | None,
    panel: str = "train",
    results: Results | None = None,
    accepted: Mapping[str, Any] | None = None,
    buffer_of: int | None = None,
) -> dict[str, Any]:
    """The verdict `{"passed", "skipped", "checks"}` on one set of rows; `passed` where no check of severity `fail` failed.

    `limits` is the section `check` of the settings. `panels` names the task ids of each panel, `panel` the one that was
    played (`train` for harvests and online rounds); without panels, labels or a replay their checks are left out.
    `replay` is what `ratchet.episodes.replay.replay` returned, `results` are an evaluation's outcomes, `accepted` the profile of the
    last accepted round, and `buffer_of` the round whose buffer these rows are. Raises RatchetError for an unknown limit.
    """
    unknown = sorted(set(limits) - set(LIMITS))
    if unknown:
        raise RatchetError(f"check.{unknown[0]}: no such limit; did you mean {nearest(unknown[0], LIMITS)!r}?")
    tables = {"episodes": episodes, "steps": steps} | ({} if labels is None else {"labels": labels})
    tables |= {} if results is None else {"outcomes": results.outcomes}
    wrong = {f"{kind}.schema": _schema_difference(table, kind) for kind, table in tables.items()}
    frames: Frames = {"summary": {name: [not text] for name, text in wrong.items()}}
    rows: dict[str, list[str]] = {}
    if not any(wrong.values()):
        rows = fill(frames, episodes.sort_by("episode_id").combine_chunks(), steps, labels, panels, panel, replay)
        _fill_more(frames, episodes, steps, panels, results, accepted, buffer_of)
    checks = _validate(frames, {**LIMITS, **limits}, rows)
    for check in checks:
        check["detail"] += f": {wrong[check['name']]}" if wrong.get(check["name"]) else ""
    return {"passed": passes(checks), "skipped": None, "checks": checks}


def _fill_more(
    frames: Frames,
    episodes: pa.Table,
    steps: pa.Table,
    panels: Mapping[str, set[str]] | None,
    results: Results | None,
    accepted: Mapping[str, Any] | None,
    buffer_of: int | None,
) -> None:
    if panels is not None:
        frames["panels"] = panel_columns(panels)
    if results is not None:
        frames |= outcome_columns(results, episodes)
    if buffer_of is not None:
        frames["buffer"] = buffer_columns(episodes, buffer_of)
    if accepted:
        found = shifts(profile(episodes, steps), accepted)
        frames["summary"] |= {f"{name}_shift": [value] for name, value in found.items()}


def _schema_difference(table: pa.Table, kind: str) -> str:
    found, expected = ({field.name: str(field.type) for field in schema} for schema in (table.schema, KINDS[kind]))
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return ", ".join(f"{name} is {found.get(name, 'missing')}, expected {expected.get(name, 'no such column')}" for name in names)


def _validate(frames: Frames, limits: Mapping[str, float], rows: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """Runs the checks whose columns are there through Great Expectations, in one ephemeral context."""
    import pandas as pd

    gx = great_expectations()

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("rows")
    found: list[dict[str, Any]] = []
    for table, columns in frames.items():
        frame = pd.DataFrame(columns)
        checks = [check for check in CHECKS.values() if check.source()[0] == table and check.source()[1] in frame]
        suite = gx.ExpectationSuite(name=table, expectations=[_expectation(gx, check, limits) for check in checks])
        batch = source.add_dataframe_asset(table).add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
        for result in batch.validate(suite, result_format="BOOLEAN_ONLY").results:  # counts and rows are read off the columns, in a third less time
            check = CHECKS[result.expectation_config.meta["check"]]
            found.append(_result(check, result, frame, limits, rows.get(check.name, [])))
    return sorted(found, key=lambda check: check["name"])


def _expectation(gx: Any, check: Check, limits: Mapping[str, float]) -> Any:
    column, meta, kinds = check.source()[1], {"check": check.name}, gx.expectations
    match check.rule:
        case "true":
            return kinds.ExpectColumnValuesToBeInSet(column=column, value_set=[True], meta=meta)
        case "unique":
            return kinds.ExpectColumnValuesToBeUnique(column=column, meta=meta)
        case "present":
            return kinds.ExpectColumnValuesToNotBeNull(column=column, meta=meta)
        case "in":
            return kinds.ExpectColumnValuesToBeInSet(column=column, value_set=list(check.bound), meta=meta)
        case "between":
            return kinds.ExpectColumnValuesToBeBetween(column=column, min_value=check.bound[0], max_value=check.bound[1], meta=meta)
        case "at_most":
            return kinds.ExpectColumnValuesToBeBetween(column=column, max_value=_bound(check, limits), meta=meta)
        case "at_least":
            return kinds.ExpectColumnValuesToBeBetween(column=column, min_value=_bound(check, limits), meta=meta)


def _bound(check: Check, limits: Mapping[str, float]) -> float:
    return limits[check.bound] if isinstance(check.bound, str) else check.bound


def _result(check: Check, result: Any, frame: pd.DataFrame, limits: Mapping[str, float], rows: list[str]) -> dict[str, Any]:
    """A check of the verdict, in plain JSON types (Great Expectations hands out numpy's)."""
    values, passed = frame[check.source()[1]], bool(result.success)
    observed, limit = 0, 0
    if check.rule in ("at_most", "at_least"):
        observed, limit = round(values.iloc[0].item(), 6), _bound(check, limits)
    elif not passed:
        broken = _broken(check, values)
        observed = int(broken.sum())
        if observed == 0:  # it could not be evaluated, which is no verdict on the data
            raise RuntimeError(f"check {check.name} did not run: {result.exception_info}")
        rows = frame["row"][broken].head(SHOWN_ROWS).tolist() if "row" in frame else []
    return {"name": check.name, "severity": check.severity, "passed": passed, "observed": observed, "limit": limit,
            "detail": check.detail, "rows": [] if passed else rows}  # fmt: skip


def _broken(check: Check, values: pd.Series) -> pd.Series:
    """Which rows break a rule that is about rows."""
    match check.rule:
        case "unique":
            return values.duplicated(keep=False) & values.notna()
        case "present":
            return values.isna()
        case "in":
            return ~values.isin(check.bound) & values.notna()
        case "between":
            return (values < check.bound[0]) | (values > check.bound[1])
        case _:
            return ~values.astype(bool)
