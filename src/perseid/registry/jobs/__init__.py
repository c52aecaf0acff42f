"""Changes to many records, with progress, resume and undo."""
