"""Tables and columns get the names of the documentation, such as `jobs` and `search`. Rows stay unchanged."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("operations", "asked", "parameters"),
    ("operations", "door", "interface"),
    ("operations", "begun", "started_at"),
    ("operations", "ended", "ended_at"),
    ("operations", "maker", "owner"),
    ("steps", "operation", "job"),
    ("targets", "target", "key"),
)
_TABLES = (("operations", "jobs"), ("targets", "search"))


def upgrade() -> None:
    """Rename the columns, the tables, their indexes and the view."""
    connection = op.get_bind()
    for name in sa.inspect(connection).get_table_names():
        if name.startswith("targets_next_"):  # an interrupted rebuild; nobody would find it under its old name
            op.drop_table(name)
    for name in ("begun", "actor", "maker", "undoes"):
        op.drop_index(f"operations_{name}", "operations")
    for table, old, new in _COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    for old, new in _TABLES:
        op.rename_table(old, new)
        if connection.dialect.name != "sqlite":
            op.execute(f"ALTER INDEX {old}_pkey RENAME TO {new}_pkey")
    op.create_index("jobs_started_at", "jobs", ["started_at", "id"])
    op.create_index("jobs_actor", "jobs", ["actor", "started_at", "id"])
    op.create_index("jobs_owner", "jobs", ["owner", "started_at", "id"])
    op.create_index("jobs_undoes", "jobs", ["undoes"])
    op.execute("UPDATE views SET name = 'search' WHERE name = 'targets'")
