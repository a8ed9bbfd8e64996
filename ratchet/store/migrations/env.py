"""Run by Alembic, from code (`ratchet.store.database.migrate`): the connection comes in the config's attributes."""

from __future__ import annotations

from alembic import context

from ratchet.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
