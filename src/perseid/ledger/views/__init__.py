"""The views derived from the ledger: records and search (SQL), answers (LMDB)."""
