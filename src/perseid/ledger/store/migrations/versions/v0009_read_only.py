"""Changes can be suspended, and the tables say which programs may write them: both for all nodes, in each commit."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns to the row that every commit locks."""
    op.add_column("head", sa.Column("read_only", sa.Text))
    op.add_column("head", sa.Column("oldest_program", sa.Text, nullable=False, server_default="0009"))
