"""Records are found by the words of their titles: `search` holds more keys, and is computed again.

Its shape stays. It is marked as being nowhere, which keeps everybody from writing until it has been rebuilt;
`rebuild.rebuild_outdated` does that when the tables are upgraded.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Mark the view."""
    op.execute("UPDATE views SET seq = -1 WHERE name = 'search'")
