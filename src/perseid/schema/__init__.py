"""Requests and responses as typed structures: what the HTTP API accepts and returns, and what `--json` prints."""
