"""The columns that the quality suite looks at, computed over whole tables: one boolean column a rule, named like its check.

Steps and labels are put in the order of (episode, t) first; `owner` then says to which row of the episodes each belongs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from monitoring.drift_columns import numbers
from monitoring.quality_checks import nearest
from ratchet.errors import RatchetError
from ratchet.policies.served_settings import VERSION

if TYPE_CHECKING:
    import pandas as pd

Frames = dict[str, dict[str, Any]]  # table → column → values
SHOWN_ROWS = 5
TOLERANCE = 1e-5  # of single-precision sums and log-softmax
FULL_SCORE = 1.0 - 1e-6


def fill(
    frames: Frames,
    episodes: pa.Table,
    steps: pa.Table,
    labels: pa.Table | None,
    panels: Mapping[str, set[str]] | None,
    panel: str,
    replay: Mapping[str, Any] | None,
) -> dict[str, list[str]]:
    """Adds the columns that the checks look at; returns example rows of the checks on shares."""
    owner, steps = _in_order(episodes, steps)
    frames["steps"] = _step_columns(steps, owner)
    frames["episodes"] = _episode_columns(episodes, steps, owner)
    if panels is not None:
        frames["episodes"] |= _panel_columns(episodes, panels, panel)
    if labels is not None:
        label_owner, labels = _in_order(episodes, labels)
        frames["labels"] = _label_columns(labels, label_owner, episodes, steps, owner)
        frames["steps"]["steps.labelled"] = np.isin(_keys(steps, owner), _keys(labels, label_owner))
        known = pc.is_valid(labels["ttg"]).to_numpy()
        frames["summary"]["class_share"] = [min(_share(known.sum(), len(known)), _share((~known).sum(), len(known)))]
    rows = _summarise(frames["summary"], episodes, steps, owner)
    if replay is not None:
        frames["summary"]["replay_mismatch"] = [replay["mismatched"] / max(1, replay["replayed"])]
        rows["labels.replay_mismatch"] = [f"{row['episode_id']}:{row['t']}" for row in replay.get("rows", [])[:SHOWN_ROWS]]
    return rows


def _in_order(episodes: pa.Table, table: pa.Table) -> tuple[np.ndarray, pa.Table]:
    """(`owner`, `table` sorted by episode and t); `owner[i]` is the row of the episode of row i, −1 where there is none."""
    found = pc.index_in(table["episode_id"], value_set=episodes["episode_id"].combine_chunks())
    owner = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    order = np.lexsort((_numbers(table, "t"), owner))
    return owner[order], table.take(order).combine_chunks()


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    return numbers(table[name])


def _flags(table: pa.Table, name: str) -> np.ndarray:
    """A boolean column, null as False."""
    return pc.fill_null(table[name], False).to_numpy()


def _lengths(table: pa.Table, name: str) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(table[name]), 0).to_numpy()


def _present(table: pa.Table, names: list[str]) -> np.ndarray:
    """Rows in which all these columns are neither null nor NaN."""
    present = np.ones(table.num_rows, dtype=bool)
    for name in names:
        present &= pc.invert(pc.is_null(table[name], nan_is_null=True)).to_numpy()
    return present


def _all_in_lists(table: pa.Table, name: str, good: Any) -> np.ndarray:
    """Rows of a list column in which `good(values)` holds for every value (null is NaN)."""
    lists = table[name].combine_chunks()
    bad = ~good(pc.cast(pc.list_flatten(lists), pa.float64()).to_numpy(zero_copy_only=False))
    parents = pc.list_parent_indices(lists).to_numpy()
    return np.bincount(parents, weights=bad, minlength=table.num_rows) == 0


def _keys(table: pa.Table, owner: np.ndarray) -> np.ndarray:
    """One integer for each (episode, t)."""
    return owner * 2**32 + pc.fill_null(table["t"], -1).to_numpy()


def _new_keys(table: pa.Table, owner: np.ndarray) -> np.ndarray:
    """Rows (sorted) that do not repeat the (episode, t) of the row before; those without an episode are not looked at."""
    keys = _keys(table, owner)
    return np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)] | (owner < 0)


def _row_names(table: pa.Table) -> list[str]:
    return pc.binary_join_element_wise(pc.cast(table["episode_id"], pa.string()), pc.cast(table["t"], pa.string()), ":",
                                       null_handling="replace", null_replacement="null").to_pylist()  # fmt: skip


def _step_columns(steps: pa.Table, owner: np.ndarray) -> dict[str, Any]:
    known = owner >= 0
    same = np.concatenate([[False], owner[1:] == owner[:-1]])[: len(owner)] & known  # as the row before
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(owner)))) if len(owner) else owner
    follows = np.concatenate([same[1:], [False]])[: len(owner)]  # the row after is of the same episode
    observation = steps["observation"].combine_chunks()
    unchanged = np.concatenate([pc.fill_null(pc.equal(observation[:-1], observation[1:]), False).to_numpy(zero_copy_only=False), [False]])
    reward, score, format_ok = _numbers(steps, "reward"), _numbers(steps, "score"), _flags(steps, "format_ok")
    before = np.where(same, np.concatenate([[0.0], score[:-1]])[: len(score)], 0.0)
    texts = zip(steps["action"].to_pylist(), steps["reply"].to_pylist(), strict=True)
    literal = np.array([bool(action) and action in (reply or "") for action, reply in texts], dtype=bool)
    generated = pc.fill_null(pc.equal(steps["tokens_from"], "generated"), False).to_numpy()
    lengths = _lengths(steps, "reply_ids")
    told = _lengths(steps, "entropy")
    served = pc.fill_null(pc.starts_with(steps["policy_version"], VERSION), False).to_numpy()
    return {
        "row": _row_names(steps),
        "score": score,
        "tokens_from": steps["tokens_from"].to_pandas(),
        "steps.id_unique": _new_keys(steps, owner),
        "steps.episode_exists": known,
        "steps.t_consecutive": (_numbers(steps, "t") == np.arange(len(owner)) - first) | ~known,
        "steps.text_present": _present(steps, ["observation", "reply", "action"]),
        "steps.numbers_finite": np.isfinite(reward) & np.isfinite(score),
        "steps.reward_follows_score": ((reward > 0) == (score - before > TOLERANCE)) | ~known,
        "steps.action_literal_in_reply": literal | ~format_ok,
        "steps.repeated_observation": (_flags(steps, "repeated") == unchanged[: len(owner)]) | ~follows,
        "steps.generated_tokens_present": (lengths > 0) | ~generated,
        "steps.logprobs_length": (_lengths(steps, "logprobs") == lengths) | ~generated,
        "steps.logprobs_finite": _all_in_lists(steps, "logprobs", np.isfinite),
        "steps.logprobs_not_positive": _all_in_lists(steps, "logprobs", lambda values: ~(values > TOLERANCE)),
        "steps.entropy_valid": _all_in_lists(steps, "entropy", lambda values: np.isfinite(values) & (values >= -TOLERANCE))
        & ((told == lengths) | ~generated | (served & (told == 0))),  # few servers tell it
    }


def _episode_columns(episodes: pa.Table, steps: pa.Table, owner: np.ndarray) -> dict[str, Any]:
    known, count = owner >= 0, episodes.num_rows
    failed = pc.is_valid(episodes["error"]).to_numpy()
    solved, terminated, truncated = (_flags(episodes, name) for name in ("solved", "terminated", "truncated"))
    score = _numbers(episodes, "score")
    tokens = np.bincount(owner[known], weights=_lengths(steps, "reply_ids")[known], minlength=count)
    last_score = np.full(count, np.nan)
    last_score[owner[known]] = np.maximum(0.0, _numbers(steps, "score")[known])  # sorted by t: the last one stays
    n_steps, n_tokens = _numbers(episodes, "n_steps"), _numbers(episodes, "n_tokens")
    identity = ["task_id", "env", "env_version", "split", "stratum", "cluster", "policy_id", "seed"]
    frame = episodes.select(["env", "task_id", "policy_id", "round", "iteration", "sample", "seed", "group_id"]).to_pandas()
    return {
        "row": pc.fill_null(episodes["episode_id"], "null").to_pylist(),
        "episode_id": episodes["episode_id"].to_pandas(),
        "score": score,
        "episodes.identity_present": _present(episodes, identity),
        "episodes.outcome_present": _present(episodes, ["solved", "score", "terminated", "truncated", "n_steps", "n_tokens"]),
        "episodes.sample_unique": ~frame.drop(columns="group_id").duplicated(keep=False).to_numpy(),
        "episodes.counts_range": ~((n_steps < 0) | (n_tokens < 0)),
        "episodes.solved_is_full_score": (solved == (score >= FULL_SCORE)) | failed,
        "episodes.solved_terminated": terminated | ~solved,
        "episodes.one_ending": terminated.astype(int) + truncated + failed == 1,
        "episodes.steps_complete": np.bincount(owner[known], minlength=count) == n_steps,
        "episodes.tokens_complete": tokens == n_tokens,
        "episodes.score_is_last": (np.abs(score - last_score) < TOLERANCE) | np.isnan(last_score) | failed,
        "episodes.group_size": _group_size(frame),
    }


def _group_size(frame: pd.DataFrame) -> np.ndarray:
    """Episodes whose group is as large as most groups of their policy and iteration; those without a group pass."""
    keys = ["policy_id", "round", "iteration"]
    groups = frame.dropna(subset="group_id").groupby([*keys, "group_id"], dropna=False).size().rename("size").reset_index()
    usual = groups.groupby(keys, dropna=False)["size"].agg(lambda sizes: sizes.mode().iloc[-1]).rename("usual").reset_index()
    sizes = frame.merge(groups.merge(usual, on=keys), on=[*keys, "group_id"], how="left")
    return (sizes["size"].isna() | (sizes["size"] == sizes["usual"])).to_numpy()


def _panel_columns(episodes: pa.Table, panels: Mapping[str, set[str]], panel: str) -> dict[str, Any]:
    if panel not in panels:
        raise RatchetError(f"no panel {panel!r}; did you mean {nearest(panel, panels)!r}?")
    others = set().union(*(tasks for name, tasks in panels.items() if name != panel))
    inside, outside = (pa.array(sorted(tasks), pa.string()) for tasks in (panels[panel], others))
    return {
        "episodes.tasks_in_panel": pc.is_in(episodes["task_id"], value_set=inside).to_numpy(),
        "episodes.tasks_leaked": pc.invert(pc.is_in(episodes["task_id"], value_set=outside)).to_numpy(),
    }


def _label_columns(labels: pa.Table, label_owner: np.ndarray, episodes: pa.Table, steps: pa.Table, owner: np.ndarray) -> dict[str, Any]:
    keys, step_keys = _keys(labels, label_owner), _keys(steps, owner)
    exists = np.isin(keys, step_keys) & (label_owner >= 0)
    at = np.minimum(np.searchsorted(step_keys, keys), max(0, len(step_keys) - 1))
    solved = _flags(episodes, "solved")[label_owner] if episodes.num_rows else np.zeros(len(keys), dtype=bool)
    r_aux, ttg = np.round(_numbers(labels, "r_aux"), 4), _numbers(labels, "ttg")
    rule, togo = (values[at] if len(values) else np.zeros(len(keys)) for values in (_r_aux(steps), _tokens_to_go(steps, owner)))
    return {
        "row": _row_names(labels),
        "r_aux": r_aux + 0.0,  # no negative zero
        "labels.id_unique": _new_keys(labels, label_owner),
        "labels.step_exists": exists,
        "labels.r_aux_rule": (r_aux == rule) | ~exists,
        "labels.ttg_null_in_failure": np.isnan(ttg) | solved | ~exists,
        "labels.ttg_suffix_sum": (ttg == togo) | ~solved | ~exists,
    }


def _r_aux(steps: pa.Table) -> np.ndarray:
    """Methods §5: the first rule that applies."""
    rules = [~_flags(steps, "format_ok"), ~_flags(steps, "valid"), _flags(steps, "repeated")]
    return np.select(rules, [-0.3, -0.2, -0.1], 0.0)


def _tokens_to_go(steps: pa.Table, owner: np.ndarray) -> np.ndarray:
    """Methods §3: tokens of this and all later replies of the episode. Steps are in order."""
    lengths = _lengths(steps, "reply_ids").astype(np.int64)
    through = np.cumsum(lengths)
    end = through[np.searchsorted(owner, owner, side="right") - 1] if len(owner) else through
    return end - through + lengths


def _summarise(summary: dict[str, Any], episodes: pa.Table, steps: pa.Table, owner: np.ndarray) -> dict[str, list[str]]:
    """Adds counts and shares; returns example rows of those that have some."""
    failed = pc.is_valid(episodes["error"]).to_numpy()
    solved, truncated = _flags(episodes, "solved"), _flags(episodes, "truncated") & ~failed
    counted = (owner >= 0) & ~failed[owner] if episodes.num_rows else np.zeros(len(owner), dtype=bool)
    invalid = ~_flags(steps, "valid") & counted
    repeats, sampled = _repeated_actions(episodes, steps, owner)
    summary |= {
        "episodes": [episodes.num_rows],
        "error_share": [_share(failed.sum(), len(failed))],
        "truncated_share": [_share(truncated.sum(), (~failed).sum())],
        "successes": [int((solved & ~failed).sum())],
        "failures": [int((~solved & ~failed).sum())],
        "invalid_share": [_share(invalid.sum(), counted.sum())],
        "duplicate_share": [_share(repeats.sum(), sampled)],
        "action_share": [_action_share(episodes, steps, owner)],
    }
    masks = {"episodes.error_share": failed, "episodes.truncated_share": truncated, "episodes.duplicate_actions": repeats}
    names = np.array(episodes["episode_id"].to_pylist(), dtype=object)
    rows = {name: [str(one) for one in names[mask][:SHOWN_ROWS]] for name, mask in masks.items()}
    return rows | {"steps.invalid_share": _row_names(steps.filter(pa.array(invalid)).slice(0, SHOWN_ROWS))}


def _share(part: int, whole: int) -> float:
    return float(part) / float(max(1, whole))


def _action_share(episodes: pa.Table, steps: pa.Table, owner: np.ndarray) -> float:
    """The largest share of one literal action among the steps of a policy that sampled."""
    sampled = np.nan_to_num(_numbers(episodes, "temperature")) > 0
    if not sampled.any():
        return 0.0
    mine = (owner >= 0) & sampled[owner]
    frame = steps.select(["action"]).filter(pa.array(mine)).to_pandas()
    frame["policy"] = episodes["policy_id"].to_pandas().to_numpy()[owner[mine]]
    counts = frame.groupby("policy")["action"].agg(lambda actions: actions.value_counts(normalize=True).iloc[0] if len(actions) else 0.0)
    return float(counts.max()) if len(counts) else 0.0


def _repeated_actions(episodes: pa.Table, steps: pa.Table, owner: np.ndarray) -> tuple[np.ndarray, int]:
    """(episodes that repeat an earlier sample of their task, number of sampled episodes that have such a sibling)."""
    actions = [action or "" for action in steps["action"].to_pylist()]
    bounds = np.searchsorted(owner, np.arange(episodes.num_rows + 1)).tolist()
    frame = episodes.select(["task_id", "policy_id", "round", "iteration"]).to_pandas()
    sampled = np.nan_to_num(_numbers(episodes, "temperature")) > 0
    frame["sampled"] = sampled
    siblings = frame.duplicated(keep=False).to_numpy() & sampled
    frame["actions"] = ["\x1f".join(actions[begin:end]) for begin, end in pairwise(bounds)]
    return frame.duplicated().to_numpy() & siblings, int(siblings.sum())
