"""How fast each stage of each run was.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TEXTS = ("stage", "line", "params_hash", "machine", "measured_at")
NUMBERS = (
    "wall_s", "environment_s", "reading_s", "decoding_s", "learning_s", "scoring_s", "other_s",
    "reading_tokens_per_s", "decoding_tokens_per_s", "learning_tokens_per_s", "peak_memory_mb",
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "throughput",
        sa.Column("checkout", sa.String(), nullable=False),
        sa.Column("throughput_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        *(sa.Column(name, sa.String(), nullable=True) for name in TEXTS),
        sa.Column("threads", sa.Integer(), nullable=True),
        *(sa.Column(name, sa.Float(), nullable=True) for name in NUMBERS),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in ("tokens_read", "tokens_generated", "tokens_learned")),
        sa.PrimaryKeyConstraint("checkout", "throughput_id", name="pk_throughput"),
    )
    with op.batch_alter_table("throughput") as batch:
        batch.create_index("ix_throughput_run_id", ["run_id"], unique=False)
        batch.create_index("ix_throughput_stage", ["stage"], unique=False)


def downgrade() -> None:
    op.drop_table("throughput")
