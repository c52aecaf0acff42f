"""Queries: resolution, history, search, listings, suggestions, citations and proofs."""
