"""The SQL store: connections, tables, migrations, and state that is not derived from the ledger."""

from typing import Final

TABLES_VERSION: Final = "0008"
"""The version of the tables that this program uses: the last migration. Versions have four digits, so a later one
compares greater. The migrations are not loaded to find it."""
