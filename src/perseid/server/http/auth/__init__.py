"""Authentication over HTTP: schemes, proofs, sessions."""
