"""Requests that are carried out once, with what was answered; and when bearer tokens were last used."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "idempotency",
        sa.Column("number", _number, primary_key=True, autoincrement=False),
        sa.Column("caller", sa.LargeBinary, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary),
    )
    op.create_index("idempotency_key", "idempotency", ["caller", "key"], unique=True)
    op.create_index("idempotency_at", "idempotency", ["at"])
    op.create_table(
        "token_uses",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("day", sa.BigInteger, nullable=False),
    )
