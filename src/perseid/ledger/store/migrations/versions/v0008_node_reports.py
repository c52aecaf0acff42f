"""The nodes that share a database report their state in it."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "node_reports",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
        sa.Column("clock_difference", sa.BigInteger, nullable=False),
        sa.Column("behind", sa.BigInteger, nullable=False),
    )
