"""Changes to records: each command reads a snapshot and returns a plan."""
