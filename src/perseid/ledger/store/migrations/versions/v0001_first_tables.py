"""The first tables: the log and its tree, the views in SQL, and the state that cannot be computed again."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# An INTEGER primary key is the row's own number in SQLite, with 64 bits.
_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "ledger",
        sa.Column("id", sa.LargeBinary, primary_key=True),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("signer", sa.Text, nullable=False),
    )
    op.create_table(
        "head",
        sa.Column("one", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("seq", _number, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("frontier", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "entries",
        sa.Column("seq", _number, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("previous", sa.BigInteger, nullable=False),
        sa.Column("jump", sa.BigInteger, nullable=False),
        sa.Column("nth", sa.BigInteger, nullable=False),
        sa.Column("token", sa.LargeBinary, nullable=False),
        sa.Column("leaf", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("level", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("position", _number, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "records",
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "targets",
        sa.Column("target", sa.LargeBinary, primary_key=True),
        sa.Column("seq", _number, primary_key=True, autoincrement=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "views",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("ledger", sa.LargeBinary, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("leaf", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column("size", _number, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_table(
        "redactions",
        sa.Column("seq", _number, primary_key=True, autoincrement=False),
        sa.Column("by", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("public", sa.SmallInteger, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("scope", sa.LargeBinary, primary_key=True),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("clocked", sa.SmallInteger, nullable=False),
        sa.Column("closed", sa.SmallInteger, nullable=False),
    )
