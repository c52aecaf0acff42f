"""The append-only ledger of all changes, and the views derived from it.

The rest of the program uses `ledger.Ledger`. The stored forms are specified in docs/reference/ledger-format.md,
backup-format.md and answers-format.md.
"""
