"""Is this data what it says it is? A Great Expectations suite on episodes, steps and labels, with a verdict as JSON.

Rules that need several columns or tables are computed as boolean columns (named like their check) over whole columns;
Great Expectations then validates those and the plain columns. The verdict holds no clock and no path: the same rows give
the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import yaml

from monitoring.quality_columns import SHOWN_ROWS, Frames, fill, nearest
from ratchet.episodes.schema import KINDS
from ratchet.errors import RatchetError
from ratchet.files import write_bytes

if TYPE_CHECKING:
    import pandas as pd

LIMITS = {"max_error_share": 0.02, "max_invalid_share": 0.9, "max_truncated_share": 0.95, "max_replay_mismatch": 0.0,
          "max_duplicate_share": 0.9}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: `rule` about `column` (by default the boolean column of the check's own name) of a table."""

    name: str
    detail: str
    severity: Literal["fail", "warn"] = "fail"
    rule: Literal["true", "unique", "present", "between", "in", "at_most", "at_least"] = "true"
    column: str = ""
    bound: Any = None  # (low, high), the allowed values, a name in LIMITS, or the least value
    table: str = ""  # by default what stands before the name's dot

    def source(self) -> tuple[str, str]:
        return self.table or self.name.split(".")[0], self.column or self.name


CHECKS = {check.name: check for check in [
    Check("episodes.schema", "columns and types are those of the episodes' schema", table="summary"),
    Check("steps.schema", "columns and types are those of the steps' schema", table="summary"),
    Check("labels.schema", "columns and types are those of the labels' schema", table="summary"),
    Check("episodes.not_empty", "there are episodes", rule="at_least", column="episodes", bound=1, table="summary"),
    Check("episodes.id_present", "every episode has an id", rule="present", column="episode_id"),
    Check("episodes.id_unique", "no id is there twice", rule="unique", column="episode_id"),
    Check("episodes.identity_present", "environment, version, task, split, stratum, cluster, policy and seed are known"),
    Check("episodes.outcome_present", "solved, score, terminated, truncated, n_steps and n_tokens are known"),
    Check("episodes.sample_unique", "one episode for each task, policy, round, iteration, sample and seed"),
    Check("episodes.score_range", "scores lie in [0, 1]", rule="between", column="score", bound=(0.0, 1.0)),
    Check("episodes.counts_range", "n_steps and n_tokens are not negative"),
    Check("episodes.solved_is_full_score", "solved exactly where the score is 1"),
    Check("episodes.solved_terminated", "what is solved was ended by the environment"),
    Check("episodes.one_ending", "exactly one of terminated, truncated and error"),
    Check("episodes.steps_complete", "as many steps as n_steps says"),
    Check("episodes.tokens_complete", "n_tokens is the sum of the lengths of reply_ids"),
    Check("episodes.score_is_last", "the score is that of the last step"),
    Check("episodes.tasks_in_panel", "every task belongs to the panel that was played"),
    Check("episodes.tasks_leaked", "no task belongs to another panel"),
    Check("episodes.group_size", "the groups of a policy's iteration have the same size", "warn"),
    Check("episodes.error_share", "episodes that their environment failed", rule="at_most", column="error_share",
          bound="max_error_share", table="summary"),
    Check("episodes.truncated_share", "episodes that a budget ended, of those without an error", rule="at_most",
          column="truncated_share", bound="max_truncated_share", table="summary"),
    Check("episodes.some_success", "at least one episode is solved", "warn", "at_least", "successes", 1, "summary"),
    Check("episodes.some_failure", "at least one episode is not solved", "warn", "at_least", "failures", 1, "summary"),
    Check("episodes.duplicate_actions", "sampled episodes with the same actions as another sample of their task", "warn",
          "at_most", "duplicate_share", "max_duplicate_share", "summary"),
    Check("steps.id_unique", "no step is there twice"),
    Check("steps.episode_exists", "every step belongs to an episode"),
    Check("steps.t_consecutive", "t counts 0, 1, … without a gap"),
    Check("steps.text_present", "observation, reply and action are texts"),
    Check("steps.score_range", "scores lie in [0, 1]", rule="between", column="score", bound=(0.0, 1.0)),
    Check("steps.numbers_finite", "rewards and scores are finite numbers"),
    Check("steps.reward_follows_score", "a reward above 0 exactly where the score rises"),
    Check("steps.action_literal_in_reply", "where the format is right, the action is a literal span of the reply and not empty"),
    Check("steps.repeated_observation", "`repeated` exactly where the next observation is the same"),
    Check("steps.tokens_from_known", "tokens are generated, encoded, or none", rule="in", column="tokens_from",
          bound=("generated", "encoded")),
    Check("steps.generated_tokens_present", "a generated reply has tokens"),
    Check("steps.logprobs_length", "one log-probability for each generated token"),
    Check("steps.logprobs_finite", "log-probabilities are finite"),
    Check("steps.logprobs_not_positive", "log-probabilities are at most 0"),
    Check("steps.entropy_valid", "one finite entropy of at least 0 for each generated token, or none of a served model's"),
    Check("steps.invalid_share", "steps that the environment did not take", rule="at_most", column="invalid_share",
          bound="max_invalid_share", table="summary"),
    Check("steps.labelled", "every step has a label"),
    Check("labels.id_unique", "no label is there twice"),
    Check("labels.step_exists", "every label belongs to a step"),
    Check("labels.r_aux_values", "r_aux is −0.3, −0.2, −0.1 or 0", rule="in", column="r_aux", bound=(-0.3, -0.2, -0.1, 0.0)),
    Check("labels.r_aux_rule", "r_aux is what the rules say: format, invalid, unchanged observation, in this order"),
    Check("labels.ttg_null_in_failure", "no token-to-go where the episode is not solved"),
    Check("labels.ttg_suffix_sum", "token-to-go is the number of tokens from this step to the end of a solved episode"),
    Check("labels.replay_mismatch", "episodes that were not the same when they were played again", rule="at_most",
          column="replay_mismatch", bound="max_replay_mismatch", table="summary"),
]}  # fmt: skip


def run_suite(
    episodes: pa.Table,
    steps: pa.Table,
    labels: pa.Table | None,
    *,
    limits: Mapping[str, float],
    panels: Mapping[str, set[str]] | None,
    replay: Mapping[str, Any] | None,
    panel: str = "train",
) -> dict[str, Any]:
    """The verdict `{"passed", "skipped", "checks"}` on one set of rows; `passed` where no check of severity `fail` failed.

    `limits` is the section `check` of the settings. `panels` names the task ids of each panel, `panel` the one that was
    played (`train` for harvests and online rounds); without panels, labels or a replay their checks are left out.
    `replay` is what `ratchet.episodes.replay.replay` returned. Raises RatchetError for an unknown limit.
    """
    unknown = sorted(set(limits) - set(LIMITS))
    if unknown:
        raise RatchetError(f"check.{unknown[0]}: no such limit; did you mean {nearest(unknown[0], LIMITS)!r}?")
    tables = {"episodes": episodes, "steps": steps} | ({} if labels is None else {"labels": labels})
    wrong = {f"{kind}.schema": _schema_difference(table, kind) for kind, table in tables.items()}
    frames: Frames = {"summary": {name: [not text] for name, text in wrong.items()}}
    rows: dict[str, list[str]] = {}
    if not any(wrong.values()):
        rows = fill(frames, episodes.sort_by("episode_id").combine_chunks(), steps, labels, panels, panel, replay)
    checks = _validate(frames, {**LIMITS, **limits}, rows)
    for check in checks:
        check["detail"] += f": {wrong[check['name']]}" if wrong.get(check["name"]) else ""
    return {"passed": _passes(checks), "skipped": None, "checks": checks}


def _schema_difference(table: pa.Table, kind: str) -> str:
    found, expected = ({field.name: str(field.type) for field in schema} for schema in (table.schema, KINDS[kind]))
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return ", ".join(f"{name} is {found.get(name, 'missing')}, expected {expected.get(name, 'no such column')}" for name in names)


def _validate(frames: Frames, limits: Mapping[str, float], rows: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """Runs the checks whose columns are there through Great Expectations, in one ephemeral context."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # read when it is imported; no telemetry from a pipeline
    import great_expectations as gx  # takes seconds, so only where a suite runs
    import pandas as pd

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("rows")
    found: list[dict[str, Any]] = []
    for table, columns in frames.items():
        frame = pd.DataFrame(columns)
        checks = [check for check in CHECKS.values() if check.source()[0] == table and check.source()[1] in frame]
        suite = gx.ExpectationSuite(name=table, expectations=[_expectation(gx, check, limits) for check in checks])
        batch = source.add_dataframe_asset(table).add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
        for result in batch.validate(suite, result_format="SUMMARY").results:
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
            return kinds.ExpectColumnValuesToBeBetween(column=column, max_value=limits[check.bound], meta=meta)
        case "at_least":
            return kinds.ExpectColumnValuesToBeBetween(column=column, min_value=check.bound, meta=meta)


def _result(check: Check, result: Any, frame: pd.DataFrame, limits: Mapping[str, float], rows: list[str]) -> dict[str, Any]:
    """A check of the verdict, in plain JSON types (Great Expectations hands out numpy's)."""
    if not result.result:  # it could not be evaluated, which is no verdict on the data
        raise RuntimeError(f"check {check.name} did not run: {result.exception_info}")
    values = frame[check.source()[1]]
    passed, observed, limit = bool(result.success), int(result.result.get("unexpected_count", 0)), 0
    if check.rule in ("at_most", "at_least"):
        observed = round(values.iloc[0].item(), 6)
        limit = limits[check.bound] if check.rule == "at_most" else check.bound
    elif not passed and "row" in frame:
        unexpected = result.result.get("partial_unexpected_list", [])
        rows = frame["row"][values.isna() if check.rule == "present" else values.isin(unexpected)].head(SHOWN_ROWS).tolist()
    return {"name": check.name, "severity": check.severity, "passed": passed, "observed": observed, "limit": limit,
            "detail": check.detail, "rows": [] if passed else rows}  # fmt: skip


def _passes(checks: list[dict[str, Any]]) -> bool:
    return all(check["passed"] or check["severity"] == "warn" or "waived" in check for check in checks)


def apply_waivers(verdict: Mapping[str, Any], waivers: list[dict[str, str]]) -> dict[str, Any]:
    """The verdict with `"waived": reason` at each failed check that a person lets pass, and `passed` decided again."""
    reasons = {waiver["check"]: waiver["reason"] for waiver in waivers}
    checks = [
        {**check, "waived": reasons[check["name"]]} if not check["passed"] and check["name"] in reasons else dict(check)
        for check in verdict["checks"]
    ]
    return {**verdict, "passed": _passes(checks), "checks": checks}


def read_waivers(path: Path) -> list[dict[str, str]]:
    """The waivers of a file (`waivers: [{check, reason}, …]`); none where there is no file. Raises RatchetError."""
    if not path.is_file():
        return []
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RatchetError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict) or set(content) - {"waivers"} or not isinstance(content.get("waivers") or [], list):
        raise RatchetError(f"{path}: expected `waivers:` with a list of `{{check, reason}}`")
    return [_waiver(waiver, path) for waiver in content.get("waivers") or []]


def _waiver(waiver: Any, where: Path) -> dict[str, str]:
    if not isinstance(waiver, dict) or set(waiver) != {"check", "reason"}:
        raise RatchetError(f"{where}: a waiver has exactly `check` and `reason`, found {waiver!r}")
    if not isinstance(waiver["check"], str) or waiver["check"] not in CHECKS:
        raise RatchetError(f"{where}: no check {waiver['check']!r}; did you mean {nearest(str(waiver['check']), CHECKS)!r}?")
    if not isinstance(waiver["reason"], str) or not waiver["reason"].strip():
        raise RatchetError(f"{where}: the waiver of {waiver['check']} needs a reason, in words")
    return {"check": waiver["check"], "reason": " ".join(waiver["reason"].split())}


def add_waiver(path: Path, check: str, reason: str) -> None:
    """Writes a waiver into the file, in place of an earlier one of the same check."""
    added = _waiver({"check": check, "reason": reason}, path)
    waivers = [waiver for waiver in read_waivers(path) if waiver["check"] != check] + [added]
    content = {"waivers": sorted(waivers, key=lambda waiver: waiver["check"])}
    write_bytes(path, yaml.safe_dump(content, sort_keys=True, allow_unicode=True).encode())
