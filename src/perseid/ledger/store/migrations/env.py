"""Run by Alembic: upgrade the tables on the given connection to the requested version."""

from alembic import context

from perseid.ledger.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
