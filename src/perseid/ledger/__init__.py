"""The ledger: every change, once, in order, and provable; and the views that are derived from it.

`Ledger` is what the rest of the program uses: it appends, reads and resolves. `verification` checks proofs anywhere.
What is written is specified in docs/reference/ledger-format.md and docs/reference/answers-format.md.
"""
