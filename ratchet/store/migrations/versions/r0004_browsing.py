"""What a list of episodes with filters needs, and what kind of model a version is.

Rows of before lack both; their files are forgotten, and the next sync takes all up again.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

INDEXES = {"ix_episodes_episode_id": ["episode_id", "file_id"], "ix_episodes_task_id": ["task_id", "file_id", "episode_id"]}


def upgrade() -> None:
    for table in ("steps", "outcomes", "episodes", "files"):
        op.execute(sa.delete(sa.table(table)))
    op.create_table(
        "tallies",
        sa.Column("file_id", sa.String(), nullable=False),
        sa.Column("row", sa.Integer(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=True),
        sa.Column("stratum", sa.String(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("n", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["file_id"], ["files.file_id"], name="fk_tallies_file_id_files", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("file_id", "row", name="pk_tallies"),
        sqlite_with_rowid=False,
    )
    for name, columns in INDEXES.items():
        op.create_index(name, "episodes", columns, unique=False)
    op.add_column("versions", sa.Column("kind", sa.String(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("versions") as batch:
        batch.drop_column("kind")
    for name in INDEXES:
        op.drop_index(name, table_name="episodes")
    op.drop_table("tallies")
