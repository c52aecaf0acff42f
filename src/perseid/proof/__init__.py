"""The stand-alone verifier of proofs and checkpoints. It imports nothing else of the package."""
