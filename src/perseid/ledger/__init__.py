"""The ledger: every change, once, in order, and provable.

Built so far is what the ledger is made of: entries with their two forms, the Merkle tree over them, signed
checkpoints, and the clock that dates them. What stores them comes next.
"""
