"""A site of plain files that keeps identifiers resolving when a service ends."""
