"""The log: entries, commits, preconditions, the clock and the writer."""
