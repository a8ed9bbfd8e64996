"""What an episode and its steps hold, as Arrow schemas (zstd Parquet, sorted by id, schema version in the metadata).

Ids are token ids of `tokenizer_id`. A step's `prompt_ids` are the tokens that are new since the last step (at t = 0 the
beginning of the sequence and the first observation), so an episode's sequence is the concatenation of
`prompt_ids + reply_ids` over its steps; turning turns into tokens never changes an earlier token.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

SCHEMA_VERSION = 1
VERSION_KEY = b"ratchet.schema_version"
KIND_KEY = b"ratchet.kind"

EPISODES = pa.schema(
    [
        ("episode_id", pa.string()),  # uuid5 of env, task, policy, round, iteration, sample, seed
        ("env", pa.string()),
        ("env_version", pa.string()),
        ("task_id", pa.string()),
        ("split", pa.string()),
        ("stratum", pa.string()),
        ("cluster", pa.string()),
        ("policy_id", pa.string()),
        ("round", pa.int32()),
        ("iteration", pa.int32()),
        ("group_id", pa.string()),
        ("sample", pa.int32()),
        ("seed", pa.int64()),
        ("solved", pa.bool_()),
        ("score", pa.float32()),
        ("terminated", pa.bool_()),  # the environment ended it
        ("truncated", pa.bool_()),  # the step or token budget ended it
        ("error", pa.string()),  # null, or why the environment failed; such episodes are excluded and counted
        ("n_steps", pa.int32()),
        ("n_tokens", pa.int32()),  # generated tokens
        ("tokenizer_id", pa.string()),
        ("temperature", pa.float32()),  # of the sampled distribution; 0 is greedy; null where no model sampled
    ]
)

STEPS = pa.schema(
    [
        ("episode_id", pa.string()),
        ("t", pa.int32()),
        ("observation", pa.string()),  # what the policy saw before it acted
        ("reply", pa.string()),  # all that the policy wrote
        ("action", pa.string()),  # a literal span of the reply
        ("action_type", pa.string()),  # the action's verb
        ("prompt_ids", pa.list_(pa.int32())),
        ("reply_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),  # of reply_ids under the sampled distribution
        ("entropy", pa.list_(pa.float32())),  # of the sampled distribution, nats, one a reply token
        ("policy_version", pa.string()),
        ("tokens_from", pa.string()),  # `generated`, `encoded`, null
        ("reward", pa.float32()),
        ("score", pa.float32()),
        ("format_ok", pa.bool_()),  # the reply held exactly one action in the expected format
        ("valid", pa.bool_()),  # the environment took the action
        ("repeated", pa.bool_()),  # the next observation equals the one before
    ]
)

LABELS = pa.schema(
    [
        ("episode_id", pa.string()),
        ("t", pa.int32()),
        ("r_aux", pa.float32()),  # methods §5: −.3 format, −.2 invalid, −.1 unchanged observation, else 0
        ("ttg", pa.int32()),  # methods §3: generated tokens still to come, null in failures
    ]
)

OUTCOMES = pa.schema(
    [
        ("version", pa.string()),
        ("panel", pa.string()),
        ("panel_hash", pa.string()),
        ("task_id", pa.string()),
        ("stratum", pa.string()),
        ("cluster", pa.string()),
        ("sample", pa.int32()),
        ("seed", pa.int64()),
        ("solved", pa.bool_()),
        ("score", pa.float32()),
        ("truncated", pa.bool_()),
        ("error", pa.string()),
        ("n_steps", pa.int32()),
        ("n_tokens", pa.int32()),
        ("n_invalid", pa.int32()),
        ("episode_id", pa.string()),
    ]
)

BUFFER = pa.schema(
    [
        ("episode_id", pa.string()),
        ("source", pa.string()),  # expert, own, pool, failure (of an earlier online round)
        ("age", pa.int32()),  # rounds since it was played; 0 for experts
        ("policy_version", pa.string()),  # that played it
        ("held_out", pa.bool_()),  # its task measures the critic, and nothing is learned from it
    ]
)

LOGPROBS = pa.schema(
    [
        ("episode_id", pa.string()),
        ("t", pa.int32()),
        ("logprobs", pa.list_(pa.float32())),  # of reply_ids under the actor at the round's start, at temperature 1
    ]
)

CRITIC = pa.schema(
    [
        ("episode_id", pa.string()),
        ("t", pa.int32()),
        ("value", pa.float32()),  # V before the action
        ("q", pa.float32()),  # Q of the action
        ("advantage", pa.float32()),  # the process reward (methods §5)
        ("weight", pa.float32()),  # of a buffer: w_t of weighted IQL; of an online round: what the step's advantage was multiplied with
    ]
)

METER = pa.schema(
    [
        ("episode_id", pa.string()),
        ("t", pa.int32()),
        ("completable", pa.bool_()),  # what a progress meter said before the action (methods §3)
        ("p", pa.float32()),  # calibrated probability of that
        ("remaining", pa.float32()),  # in the unit of its target; null where it gave no number
        ("parsed", pa.bool_()),  # false: what it wrote was no answer, or the prefix was too long to ask
        ("cost", pa.float32()),  # c_t
        ("delta", pa.float32()),  # what the action took off the cost
        ("weight", pa.float32()),  # what the step's advantage was multiplied with; null where nothing was learned from it
    ]
)

KINDS = {
    "episodes": EPISODES,
    "steps": STEPS,
    "labels": LABELS,
    "outcomes": OUTCOMES,
    "buffer": BUFFER,
    "logprobs": LOGPROBS,
    "critic": CRITIC,
    "meter": METER,
}


def rows_of(episode_ids: Iterable[str]) -> dict[str, range]:
    """The rows of each episode, given the ids of a table's rows, in which those of one episode are neighbours."""
    found: dict[str, range] = {}
    for row, one in enumerate(episode_ids):
        found[one] = range(found[one].start if one in found else row, row + 1)
    return found
