"""Whose an operation is, however they spell their handle, and indexes by which operations are found.

It imports nothing of the package: what it does to tables of version 4 is the same for ever.
"""

import re

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BY_TOKEN = re.compile(r"token:\w{8} by ")
_KEY = re.compile(r"\d+:")
_FOLDED_WHOLE = "0."


def upgrade() -> None:
    """Add the column, fill it, and make the indexes."""
    op.add_column("operations", sa.Column("maker", sa.Text, nullable=False, server_default=""))
    operations = sa.table("operations", sa.column("actor"), sa.column("maker"))
    for actor in op.get_bind().execute(sa.select(operations.c.actor).distinct()).scalars().all():
        op.execute(operations.update().where(operations.c.actor == actor).values(maker=_maker(actor)))
    op.create_index("operations_begun", "operations", ["begun", "id"])
    op.create_index("operations_actor", "operations", ["actor", "begun", "id"])
    op.create_index("operations_maker", "operations", ["maker", "begun", "id"])
    op.create_index("operations_undoes", "operations", ["undoes"])


def _maker(actor: str) -> str:
    """Who began it, or made the token with which it was begun, in the form in which all spellings meet."""
    by_token = _BY_TOKEN.match(actor)
    maker = actor if by_token is None else actor[by_token.end() :]
    key = _KEY.match(maker)
    if key is None:
        return maker  # an operator of the machine
    prefix, slash, suffix = maker[key.end() :].partition("/")
    # As identities are compared: only the prefix folds, and everything of the system's own names.
    return f"{key[0]}{_fold(prefix)}{slash}{_fold(suffix) if prefix.startswith(_FOLDED_WHOLE) else suffix}"


def _fold(text: str) -> str:
    """Fold ASCII letters to upper case and leave every other character alone."""
    # bytes.upper knows ASCII only, and in UTF-8 no byte below 0x80 belongs to another character.
    return text.encode("utf-8", "surrogatepass").upper().decode("utf-8", "surrogatepass")
