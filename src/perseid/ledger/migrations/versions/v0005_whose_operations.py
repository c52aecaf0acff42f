"""Whose an operation is that was begun with a token, and indexes by which operations are found."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BEFORE_MAKER = len("token:k7qpx2ma by ")


def upgrade() -> None:
    """Add the column, fill it, and make the indexes."""
    op.add_column("operations", sa.Column("maker", sa.Text, nullable=False, server_default=""))
    operations = sa.table("operations", sa.column("actor"), sa.column("maker"))
    maker = sa.func.substr(operations.c.actor, _BEFORE_MAKER + 1)
    op.execute(operations.update().where(operations.c.actor.like("token:________ by %")).values(maker=maker))
    op.create_index("operations_begun", "operations", ["begun", "id"])
    op.create_index("operations_actor", "operations", ["actor", "begun", "id"])
    op.create_index("operations_maker", "operations", ["maker", "begun", "id"])
    op.create_index("operations_undoes", "operations", ["undoes"])
