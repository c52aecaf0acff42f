"""The SQL store: connections, tables, migrations, and state that is not derived from the ledger."""
