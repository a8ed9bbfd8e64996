"""Tables of the index. All of it can be rebuilt: from the cards, the outbox, and the runs' Parquet files.

Rows that come from a file carry its `file_id`, so a file that changed is replaced whole. Episodes and steps have no texts. Several
checkouts may share one database: every row belongs to one of them, by its `checkout` or its file's.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, ForeignKeyConstraint, Index, Integer, MetaData, String, Table, Text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _key(name: str) -> Column[str]:
    return Column(name, String, primary_key=True)


def _checkout() -> Column[str]:
    return Column("checkout", String, primary_key=True)


def _version() -> Column[str]:
    return Column("version", String, nullable=False, index=True)


def _of_version() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["checkout", "version"], ["versions.checkout", "versions.version"], ondelete="CASCADE")


def _file() -> Column[str]:
    return Column("file_id", String, ForeignKey("files.file_id", ondelete="CASCADE"), primary_key=True)


versions = Table(
    "versions",
    metadata,
    _checkout(),
    _key("version"),
    Column("kind", String),  # actor, meter, critic
    Column("line", String, index=True),
    Column("status", String),  # candidate, champion, archived
    Column("round", Integer),
    Column("iteration", Integer),
    Column("stage", String),
    Column("actor", String),
    Column("parents", Text),  # JSON list of versions
    Column("tokenizer_id", String),
    Column("weights_hash", String),
    Column("params_hash", String),
    Column("code_hash", String),
    Column("weights", Text),  # model folder, relative to the checkout
    Column("created_by", String),
    Column("created_at", String),
)

evaluations = Table(
    "evaluations",
    metadata,
    _checkout(),
    _key("evaluation_id"),
    _version(),
    Column("run_id", String, index=True),
    Column("round", Integer),
    Column("panel", String),
    Column("panel_hash", String),
    Column("n", Integer),
    Column("samples", Integer),
    Column("errors", Integer),
    Column("success_mean", Float),
    Column("success_low", Float),
    Column("success_high", Float),
    Column("score", Float),
    Column("avg_at_k", Float),
    Column("pass_hat_k", Float),
    Column("steps", Float),
    Column("tokens", Float),
    Column("invalid_share", Float),
    Column("truncated_share", Float),
    Column("outcomes", Text),  # Parquet file, relative to the checkout
    Column("at", String),
    _of_version(),
)

decisions = Table(
    "decisions",
    metadata,
    _checkout(),
    _key("decision_id"),
    _version(),
    Column("run_id", String, index=True),
    Column("round", Integer),
    Column("line", String),
    Column("by", String),  # `rule`, or a person
    Column("event", String),
    Column("promoted", Boolean),
    Column("candidate", String),
    Column("champion", String),
    Column("alpha", Float),
    Column("gain_mean", Float),
    Column("gain_low", Float),
    Column("gain_high", Float),
    Column("stop", Text),
    Column("reasons", Text),  # JSON list
    Column("at", String),
    _of_version(),
)

checks = Table(
    "checks",
    metadata,
    _checkout(),
    _key("check_id"),
    Column("run_id", String, index=True),
    Column("round", Integer),
    Column("name", String),
    Column("severity", String),
    Column("passed", Boolean),
    Column("observed", Text),
    Column("limit", Text),
    Column("detail", Text),
)

drift = Table(
    "drift",
    metadata,
    _checkout(),
    _key("drift_id"),
    Column("run_id", String, index=True),
    Column("round", Integer),
    Column("column", String),
    Column("method", String),
    Column("observed", Float),
    Column("limit", Float),
    Column("detected", Boolean),
)

alerts = Table(
    "alerts",
    metadata,
    _checkout(),
    _key("event_id"),
    Column("kind", String, index=True),
    Column("run_id", String),
    Column("round", Integer),
    Column("line", String),
    Column("version", String),
    Column("text", Text),
    Column("delivered", Boolean),
    Column("at", String),
)

throughput = Table(
    "throughput",
    metadata,
    _checkout(),
    _key("throughput_id"),
    Column("run_id", String, index=True),
    Column("stage", String, index=True),
    Column("line", String),
    Column("params_hash", String),
    Column("machine", String),  # processor and cores
    Column("measured_at", String),
    Column("threads", Integer),
    Column("wall_s", Float),
    Column("environment_s", Float),
    Column("reading_s", Float),
    Column("decoding_s", Float),
    Column("learning_s", Float),
    Column("scoring_s", Float),
    Column("other_s", Float),
    Column("reading_tokens_per_s", Float),
    Column("decoding_tokens_per_s", Float),
    Column("learning_tokens_per_s", Float),
    Column("peak_memory_mb", Float),
    Column("tokens_read", BigInteger),
    Column("tokens_generated", BigInteger),
    Column("tokens_learned", BigInteger),
)

files = Table(
    "files",
    metadata,
    _key("file_id"),  # 12 hex of (checkout, run_id, path)
    Column("checkout", String, nullable=False, index=True),
    Column("run_id", String, nullable=False, index=True),
    Column("path", Text, nullable=False),  # relative to the workspace
    Column("kind", String, nullable=False),
    Column("content", String, nullable=False),  # SHA-256 of its bytes
    Column("size", BigInteger, nullable=False),
    Column("modified", BigInteger, nullable=False),  # ns; with `size`, what says that a file need not be hashed again
    Column("rows", Integer, nullable=False),
)

outcomes = Table(
    "outcomes",
    metadata,
    _file(),
    Column("row", Integer, primary_key=True),  # place in the file
    Column("version", String, index=True),
    Column("panel", String),
    Column("panel_hash", String),
    Column("task_id", String),
    Column("stratum", String),
    Column("cluster", String),
    Column("sample", Integer),
    Column("seed", BigInteger),
    Column("solved", Boolean),
    Column("score", Float),
    Column("truncated", Boolean),
    Column("error", Text),
    Column("n_steps", Integer),
    Column("n_tokens", Integer),
    Column("n_invalid", Integer),
    Column("episode_id", String),
    sqlite_with_rowid=False,
)

episodes = Table(
    "episodes",
    metadata,
    _file(),
    Column("episode_id", String, primary_key=True),
    Column("env", String),
    Column("env_version", String),
    Column("task_id", String),
    Column("split", String),
    Column("stratum", String),
    Column("cluster", String),
    Column("policy_id", String),
    Column("round", Integer),
    Column("iteration", Integer),
    Column("group_id", String),
    Column("sample", Integer),
    Column("seed", BigInteger),
    Column("solved", Boolean),
    Column("score", Float),
    Column("terminated", Boolean),
    Column("truncated", Boolean),
    Column("error", Text),
    Column("n_steps", Integer),
    Column("n_tokens", Integer),
    Column("tokenizer_id", String),
    Column("temperature", Float),
    # whoever opens an episode knows its id or its task, and no file
    Index("ix_episodes_episode_id", "episode_id", "file_id"),
    Index("ix_episodes_task_id", "task_id", "file_id", "episode_id"),
    sqlite_with_rowid=False,
)

tallies = Table(
    "tallies",
    metadata,
    _file(),
    Column("row", Integer, primary_key=True),
    Column("policy_id", String),
    Column("stratum", String),
    Column("round", Integer),
    Column("outcome", String),  # solved, unsolved, truncated, error
    Column("n", Integer),  # episodes of the file that are all of this
    sqlite_with_rowid=False,
)
"""How many episodes a file has of each kind: what a list with filters counts without reading the episodes themselves."""

steps = Table(
    "steps",
    metadata,
    _file(),
    Column("episode_id", String, primary_key=True),
    Column("t", Integer, primary_key=True),
    Column("action_type", String),
    Column("n_prompt", Integer),  # tokens read
    Column("n_reply", Integer),  # tokens written
    Column("policy_version", String),
    Column("tokens_from", String),
    Column("reward", Float),
    Column("score", Float),
    Column("format_ok", Boolean),
    Column("valid", Boolean),
    Column("repeated", Boolean),
    sqlite_with_rowid=False,
)

BY_KIND = {"episodes": episodes, "steps": steps, "outcomes": outcomes}
OF_FILE = (*BY_KIND.values(), tallies)
OF_CHECKOUT = (versions, evaluations, decisions, checks, drift, alerts, throughput, files)  # parents before children; the other tables hang on files
