"""The rules of the quality suite by name: what each asks, how grave it is, and which limits are settings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from monitoring.drift_columns import COLUMNS

LIMITS = {"max_error_share": 0.02, "max_invalid_share": 0.9, "max_truncated_share": 0.95, "max_replay_mismatch": 0.0,
          "max_duplicate_share": 0.9, "max_action_share": 0.95, "max_length_shift": 1.0, "min_class_share": 0.01}  # fmt: skip
"""The section `check` of the settings, which says what each means."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: `rule` about `column` (by default the boolean column of the check's own name) of a table."""

    name: str
    detail: str
    severity: Literal["fail", "warn"] = "fail"
    rule: Literal["true", "unique", "present", "between", "in", "at_most", "at_least"] = "true"
    column: str = ""
    bound: Any = None  # (low, high), the allowed values, a name in LIMITS, or a number
    table: str = ""  # by default what stands before the name's dot

    def source(self) -> tuple[str, str]:
        """(table, column) that it looks at."""
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
    Check("episodes.one_action", "the largest share of one literal action among a sampled policy's steps", "warn", "at_most",
          "action_share", "max_action_share", "summary"),
    Check("episodes.length_shift", "episode lengths of a policy against the last accepted round, in standard deviations", "warn",
          "at_most", "episode_length_shift", "max_length_shift", "summary"),
    Check("steps.length_shift", "tokens of a policy's replies against the last accepted round, in standard deviations", "warn",
          "at_most", "reply_length_shift", "max_length_shift", "summary"),
    Check("panels.disjoint", "no task belongs to two panels"),
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
    Check("labels.class_balance", "the rarer of solved and failed, as a share of the labels", "warn", "at_least", "class_share",
          "min_class_share", "summary"),
    Check("labels.ttg_null_in_failure", "no token-to-go where the episode is not solved"),
    Check("labels.ttg_suffix_sum", "token-to-go is the number of tokens from this step to the end of a solved episode"),
    Check("labels.replay_mismatch", "episodes that were not the same when they were played again", rule="at_most",
          column="replay_mismatch", bound="max_replay_mismatch", table="summary"),
    Check("outcomes.schema", "columns and types are those of the outcomes' schema", table="summary"),
    Check("outcomes.sample_unique", "one outcome for each task and sample"),
    Check("outcomes.tasks_in_panel", "every outcome is of a task of the panel"),
    Check("outcomes.complete", "every task of the panel has all its samples", table="panel"),
    Check("outcomes.same_panel", "every outcome carries the panel's hash"),
    Check("outcomes.one_version", "all outcomes are of one version"),
    Check("outcomes.solved_known", "solved is known, or an error says why not"),
    Check("outcomes.score_range", "scores lie in [0, 1]", rule="between", column="score", bound=(0.0, 1.0)),
    Check("outcomes.solved_is_full_score", "solved exactly where the score is 1"),
    Check("outcomes.counts_range", "steps, tokens and invalid steps are not negative, and no more invalid steps than steps"),
    Check("outcomes.episode_matches", "each outcome says what its episode says"),
    Check("buffer.not_from_later", "no episode of a round after this one"),
    Check("buffer.no_error", "no episode that its environment failed"),
]}  # fmt: skip


def known_names() -> list[str]:
    """All that `ratchet waive` can name: checks, and the columns in which drift is looked for."""
    return [*CHECKS, *(f"drift.{name}" for name in COLUMNS)]


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that looks most like `name`."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]
