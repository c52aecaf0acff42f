"""The log: entries, commits, readers, the clock and the writer."""
