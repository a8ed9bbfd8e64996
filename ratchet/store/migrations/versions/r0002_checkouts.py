"""Several checkouts in one database: every row belongs to one of them.

The index is made from cards and files, and rows of before belong to nobody: they are dropped, and the next sync takes all up again.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEYS = {
    "versions": "version",
    "evaluations": "evaluation_id",
    "decisions": "decision_id",
    "checks": "check_id",
    "drift": "drift_id",
    "alerts": "event_id",
}
CHILDREN = ("evaluations", "decisions")


def upgrade() -> None:
    for table in ("decisions", "evaluations", "versions", "checks", "alerts", "drift", "steps", "outcomes", "episodes", "files"):
        op.execute(sa.delete(sa.table(table)))
    for table in CHILDREN:
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(f"fk_{table}_version_versions", type_="foreignkey")
    for table, key in KEYS.items():
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column("checkout", sa.String(), nullable=False))
            batch.drop_constraint(f"pk_{table}", type_="primary")
            batch.create_primary_key(f"pk_{table}", ["checkout", key])
    for table in CHILDREN:
        with op.batch_alter_table(table) as batch:
            batch.create_foreign_key(
                f"fk_{table}_checkout_versions", "versions", ["checkout", "version"], ["checkout", "version"], ondelete="CASCADE"
            )
    with op.batch_alter_table("files") as batch:
        batch.add_column(sa.Column("checkout", sa.String(), nullable=False))
        batch.create_index("ix_files_checkout", ["checkout"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("files") as batch:
        batch.drop_index("ix_files_checkout")
        batch.drop_column("checkout")
    for table in CHILDREN:
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(f"fk_{table}_checkout_versions", type_="foreignkey")
    for table in KEYS:
        op.execute(sa.delete(sa.table(table)))
    for table, key in KEYS.items():
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(f"pk_{table}", type_="primary")
            batch.drop_column("checkout")
            batch.create_primary_key(f"pk_{table}", [key])
    for table in CHILDREN:
        with op.batch_alter_table(table) as batch:
            batch.create_foreign_key(f"fk_{table}_version_versions", "versions", ["version"], ["version"], ondelete="CASCADE")
