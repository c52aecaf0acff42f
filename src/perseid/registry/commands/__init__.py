"""Commands: each reads a snapshot and returns a plan for a change."""
