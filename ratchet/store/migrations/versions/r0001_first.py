"""The first tables.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=True),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("line", sa.String(), nullable=True),
        sa.Column("version", sa.String(), nullable=True),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("delivered", sa.Boolean(), nullable=True),
        sa.Column("at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_alerts")),
    )
    op.create_index(op.f("ix_alerts_kind"), "alerts", ["kind"], unique=False)
    op.create_table(
        "checks",
        sa.Column("check_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("severity", sa.String(), nullable=True),
        sa.Column("passed", sa.Boolean(), nullable=True),
        sa.Column("observed", sa.Text(), nullable=True),
        sa.Column("limit", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("check_id", name=op.f("pk_checks")),
    )
    op.create_index(op.f("ix_checks_run_id"), "checks", ["run_id"], unique=False)
    op.create_table(
        "drift",
        sa.Column("drift_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("column", sa.String(), nullable=True),
        sa.Column("method", sa.String(), nullable=True),
        sa.Column("observed", sa.Float(), nullable=True),
        sa.Column("limit", sa.Float(), nullable=True),
        sa.Column("detected", sa.Boolean(), nullable=True),
        sa.PrimaryKeyConstraint("drift_id", name=op.f("pk_drift")),
    )
    op.create_index(op.f("ix_drift_run_id"), "drift", ["run_id"], unique=False)
    op.create_table(
        "files",
        sa.Column("file_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("modified", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("file_id", name=op.f("pk_files")),
    )
    op.create_index(op.f("ix_files_run_id"), "files", ["run_id"], unique=False)
    op.create_table(
        "versions",
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("line", sa.String(), nullable=True),
        sa.Column("status", sa.String(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("iteration", sa.Integer(), nullable=True),
        sa.Column("stage", sa.String(), nullable=True),
        sa.Column("actor", sa.String(), nullable=True),
        sa.Column("parents", sa.Text(), nullable=True),
        sa.Column("tokenizer_id", sa.String(), nullable=True),
        sa.Column("weights_hash", sa.String(), nullable=True),
        sa.Column("params_hash", sa.String(), nullable=True),
        sa.Column("code_hash", sa.String(), nullable=True),
        sa.Column("weights", sa.Text(), nullable=True),
        sa.Column("created_by", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_versions")),
    )
    op.create_index(op.f("ix_versions_line"), "versions", ["line"], unique=False)
    op.create_table(
        "decisions",
        sa.Column("decision_id", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("line", sa.String(), nullable=True),
        sa.Column("by", sa.String(), nullable=True),
        sa.Column("event", sa.String(), nullable=True),
        sa.Column("promoted", sa.Boolean(), nullable=True),
        sa.Column("candidate", sa.String(), nullable=True),
        sa.Column("champion", sa.String(), nullable=True),
        sa.Column("alpha", sa.Float(), nullable=True),
        sa.Column("gain_mean", sa.Float(), nullable=True),
        sa.Column("gain_low", sa.Float(), nullable=True),
        sa.Column("gain_high", sa.Float(), nullable=True),
        sa.Column("stop", sa.Text(), nullable=True),
        sa.Column("reasons", sa.Text(), nullable=True),
        sa.Column("at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["version"], ["versions.version"], name=op.f("fk_decisions_version_versions"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("decision_id", name=op.f("pk_decisions")),
    )
    op.create_index(op.f("ix_decisions_run_id"), "decisions", ["run_id"], unique=False)
    op.create_index(op.f("ix_decisions_version"), "decisions", ["version"], unique=False)
    op.create_table(
        "episodes",
        sa.Column("file_id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("env", sa.String(), nullable=True),
        sa.Column("env_version", sa.String(), nullable=True),
        sa.Column("task_id", sa.String(), nullable=True),
        sa.Column("split", sa.String(), nullable=True),
        sa.Column("stratum", sa.String(), nullable=True),
        sa.Column("cluster", sa.String(), nullable=True),
        sa.Column("policy_id", sa.String(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("iteration", sa.Integer(), nullable=True),
        sa.Column("group_id", sa.String(), nullable=True),
        sa.Column("sample", sa.Integer(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("solved", sa.Boolean(), nullable=True),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("terminated", sa.Boolean(), nullable=True),
        sa.Column("truncated", sa.Boolean(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("n_steps", sa.Integer(), nullable=True),
        sa.Column("n_tokens", sa.Integer(), nullable=True),
        sa.Column("tokenizer_id", sa.String(), nullable=True),
        sa.Column("temperature", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["file_id"], ["files.file_id"], name=op.f("fk_episodes_file_id_files"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("file_id", "episode_id", name=op.f("pk_episodes")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "evaluations",
        sa.Column("evaluation_id", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("panel", sa.String(), nullable=True),
        sa.Column("panel_hash", sa.String(), nullable=True),
        sa.Column("n", sa.Integer(), nullable=True),
        sa.Column("samples", sa.Integer(), nullable=True),
        sa.Column("errors", sa.Integer(), nullable=True),
        sa.Column("success_mean", sa.Float(), nullable=True),
        sa.Column("success_low", sa.Float(), nullable=True),
        sa.Column("success_high", sa.Float(), nullable=True),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("avg_at_k", sa.Float(), nullable=True),
        sa.Column("pass_hat_k", sa.Float(), nullable=True),
        sa.Column("steps", sa.Float(), nullable=True),
        sa.Column("tokens", sa.Float(), nullable=True),
        sa.Column("invalid_share", sa.Float(), nullable=True),
        sa.Column("truncated_share", sa.Float(), nullable=True),
        sa.Column("outcomes", sa.Text(), nullable=True),
        sa.Column("at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["version"], ["versions.version"], name=op.f("fk_evaluations_version_versions"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("evaluation_id", name=op.f("pk_evaluations")),
    )
    op.create_index(op.f("ix_evaluations_run_id"), "evaluations", ["run_id"], unique=False)
    op.create_index(op.f("ix_evaluations_version"), "evaluations", ["version"], unique=False)
    op.create_table(
        "outcomes",
        sa.Column("file_id", sa.String(), nullable=False),
        sa.Column("row", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(), nullable=True),
        sa.Column("panel", sa.String(), nullable=True),
        sa.Column("panel_hash", sa.String(), nullable=True),
        sa.Column("task_id", sa.String(), nullable=True),
        sa.Column("stratum", sa.String(), nullable=True),
        sa.Column("cluster", sa.String(), nullable=True),
        sa.Column("sample", sa.Integer(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("solved", sa.Boolean(), nullable=True),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("truncated", sa.Boolean(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("n_steps", sa.Integer(), nullable=True),
        sa.Column("n_tokens", sa.Integer(), nullable=True),
        sa.Column("n_invalid", sa.Integer(), nullable=True),
        sa.Column("episode_id", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["file_id"], ["files.file_id"], name=op.f("fk_outcomes_file_id_files"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("file_id", "row", name=op.f("pk_outcomes")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_outcomes_version"), "outcomes", ["version"], unique=False)
    op.create_table(
        "steps",
        sa.Column("file_id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("t", sa.Integer(), nullable=False),
        sa.Column("action_type", sa.String(), nullable=True),
        sa.Column("n_prompt", sa.Integer(), nullable=True),
        sa.Column("n_reply", sa.Integer(), nullable=True),
        sa.Column("policy_version", sa.String(), nullable=True),
        sa.Column("tokens_from", sa.String(), nullable=True),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("format_ok", sa.Boolean(), nullable=True),
        sa.Column("valid", sa.Boolean(), nullable=True),
        sa.Column("repeated", sa.Boolean(), nullable=True),
        sa.ForeignKeyConstraint(["file_id"], ["files.file_id"], name=op.f("fk_steps_file_id_files"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("file_id", "episode_id", "t", name=op.f("pk_steps")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    for table in ("steps", "outcomes", "episodes", "evaluations", "decisions", "versions", "files", "drift", "checks", "alerts"):
        op.drop_table(table)
