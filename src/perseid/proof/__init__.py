"""Standalone verifier of proofs and checkpoints. It imports nothing else from Perseid."""
