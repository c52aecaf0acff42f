"""The SQL store: connections, tables, migrations, and state that is not derived from the ledger."""

from typing import Final

TABLES_VERSION: Final = "0009"
"""The version of the tables that this program uses: the last migration. Versions have four digits, so a later one
compares greater. The migrations are not loaded to find it."""

OLDEST_PROGRAM: Final = "0009"
"""The tables' version of the oldest program that can use these tables and what this program writes. It is stored with
them: nodes with an older program refuse changes. A release keeps that of the release before, so that nodes are upgraded
one by one: what the older program needs is removed, and new formats of entries are written, one release later."""
